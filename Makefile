# Every target works from a fresh clone with nothing but Python 3.11+, pip and make: it makes the
# virtual environment that it needs. Nothing here needs a step before it.

VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := build/bench-venv
WORKERS ?= 2
ARGS ?=

# What an installation depends on: when one of these changes it is done again.
INPUTS := pyproject.toml setup.py constraints.txt $(wildcard src/sonde/kernels/c/*.[ch])

# The first Python that is new enough. `make demo PYTHON=/path/to/python3.13` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench system clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/ready ## train a small network for about a minute, watch it, show what was seen
	$(BIN)/sonde demo $(ARGS)

# Two workers with a thread pool each on two cores: threads that wait must not keep the core busy, or
# the suite takes several times as long.
test: export OMP_WAIT_POLICY := PASSIVE
test: check system ## all that must hold: check, then the test suite (ARGS="-k store" for a part)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/ready ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_VENV)/ready ## measure; results go to benchmarks/results (quiet machine, please)
	$(BENCH_VENV)/bin/python benchmarks/kernels.py
	$(BENCH_VENV)/bin/python benchmarks/store.py
	$(BENCH_VENV)/bin/python -W ignore benchmarks/overhead.py

# Packages of the system that tests need, such as a browser, are checked for here. None yet.
system:

clean: ## remove what the other targets have made, not the runs
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete

$(VENV)/ready: $(INPUTS)
	$(call install,$(VENV),dev)

$(BENCH_VENV)/ready: $(INPUTS)
	$(call install,$(BENCH_VENV),bench)
	@$(BENCH_VENV)/bin/python -m pip install --quiet -c constraints.txt --group bench-graphs \
		|| echo "torchexplorer cannot be installed here; the results will say so."

# $(1): folder of the environment, $(2): dependency group. Where Python comes without ensurepip, its
# own pip fills the environment. setuptools is installed first, so that the build is pinned too.
define install
	@test -n "$(PYTHON)" || { echo "Sonde needs Python 3.11 or newer, and none was found." \
		"Name one: make PYTHON=/path/to/python"; exit 1; }
	@echo "Installing into $(1); the first time takes a few minutes."
	@test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(1) && \
		$(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
	$(1)/bin/python -m pip install --quiet --upgrade -c constraints.txt pip setuptools
	$(1)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation \
		-e '.[all]' --group $(2)
	@touch $@
endef
