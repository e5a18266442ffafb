# Every target works from a fresh clone with nothing but Python 3.11+, pip and make: it makes the
# virtual environment that it needs. Nothing here needs a step before it.

VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := build/bench-venv
TRACKERS_VENV := build/trackers-venv
WORKERS ?= 2
MINUTES ?= 10
ARGS ?=

# What an installation depends on: when one of these changes it is done again.
INPUTS := pyproject.toml setup.py constraints.txt $(wildcard src/sonde/*/c/*.[ch])

# The first Python that is new enough. `make demo PYTHON=/path/to/python3.13` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Empty where there is no Node that is new enough, or no npm.
NODE := $(shell node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && \
	command -v npm)

BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

.DEFAULT_GOAL := help
.PHONY: docs pictures words help demo test check web types page format bench fuzz matrix soak system trackers wheelcheck clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/ready ## train a small network for about a minute, watch it, show what was seen
	$(BIN)/sonde demo $(ARGS)

# Two workers with a thread pool each on two cores: threads that wait must not keep the core busy, or
# the suite takes several times as long.
test: export OMP_WAIT_POLICY := PASSIVE
test: check web system ## all that must hold: check, web, then the test suite (ARGS="-k store" for a part)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/ready ## format, lint, types, import direction, prose
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py

# The page is committed as it was built, so that nobody needs Node to use it; who has Node checks that.
web: $(if $(NODE),web/node_modules/ready) ## the page: types, lint, its tests, and that what is committed is what is built
	@$(if $(NODE),cd web && npm run --silent check && npm test --silent && npm run --silent stale, \
		echo "The sources of the page are not checked: this takes Node 20 and npm.")

types: $(VENV)/ready ## write the types of the page from the specs and questions of views
	@mkdir -p build
	$(BIN)/python -m sonde.views.typescript > build/api.gen.ts && mv build/api.gen.ts web/src/api.gen.ts

words: $(VENV)/ready ## write docs/words.md from the docstrings of classes
	$(BIN)/python docs/make_words.py

docs: $(VENV)/ready ## build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open build/site/index.html."

pictures: $(VENV)/ready system ## take the pictures of the documents again (some minutes)
	$(BIN)/python docs/tutorial_pictures.py
	$(BIN)/python docs/screenshots.py
	$(BIN)/python docs/training_picture.py

page: types $(if $(NODE),web/node_modules/ready) ## build the page into src/sonde/present/static
	@$(if $(NODE),cd web && npm run --silent format && npm run --silent build, \
		echo "The page is not built: this takes Node 20 and npm."; exit 1)

web/node_modules/ready: web/package.json web/package-lock.json web/.npmrc
	cd web && npm ci --silent
	@touch $@

format: $(VENV)/ready ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_VENV)/ready ## measure; results go to benchmarks/results (quiet machine, please)
	$(BENCH_VENV)/bin/python benchmarks/kernels.py
	$(BENCH_VENV)/bin/python benchmarks/store.py
	$(BENCH_VENV)/bin/python benchmarks/trace.py
	OMP_NUM_THREADS=1 $(BENCH_VENV)/bin/python benchmarks/metrics.py
	$(BENCH_VENV)/bin/python benchmarks/scale.py
	$(BENCH_VENV)/bin/python -W ignore benchmarks/cadence.py
	$(BENCH_VENV)/bin/python -W ignore benchmarks/compiled.py
	$(BENCH_VENV)/bin/python -W ignore benchmarks/overhead.py

trackers: $(TRACKERS_VENV)/ready ## test the sinks with all trackers, in an environment of their own
	$(TRACKERS_VENV)/bin/python -m pytest tests/sinks $(ARGS)

fuzz: $(VENV)/ready ## mutate every kind of file of a run 2,000 times (ARGS="--mutations 50" for a short one)
	PYTHONPATH=tests/store $(BIN)/python tests/faults/fuzz.py $(ARGS)

# With torch, `make wheelcheck ARGS=--torch`.
wheelcheck: $(VENV)/ready ## build a wheel, install it into an empty environment, record, read and view there
	rm -rf build/dist && $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w build/dist .
	$(BIN)/python tools/wheel_check.py build/dist $(ARGS)

matrix: $(VENV)/ready ## run the tests of capture with torch 2.11, 2.13 and the newest; writes docs/torch_versions.md
	$(BIN)/python benchmarks/matrix.py $(ARGS)

soak: $(VENV)/ready ## train, kill, resume, trace, view and compact for MINUTES (10); fails if anything is lost or grows
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) $(ARGS)

# Packages of the system that tests need: a browser, and Java for Spark. $CHROMIUM names one that is not on the path.
system:
	@for browser in "$$CHROMIUM" $(BROWSERS); do \
		command -v "$$browser" >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ]; then root=; else root="sudo -n"; fi; \
	echo "No browser was found; installing chromium for the tests of the page."; \
	$$root apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		$$root apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null \
		|| echo "Chromium could not be installed, so the tests of the page will fail. Install it," \
			"or name a browser that is there: CHROMIUM=/path/to/chrome make test"
	@command -v java >/dev/null 2>&1 && exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=; else root="sudo -n"; fi; \
	echo "No Java was found; installing it for the test of queries with Spark."; \
	$$root apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		$$root apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null \
		|| echo "Java could not be installed, so the test of queries with Spark will fail."

clean: ## remove what the other targets have made, not the runs
	rm -rf $(VENV) build web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete

$(VENV)/ready: $(INPUTS)
	$(call install,$(VENV),dev)

# What these trackers ask for is older than what is pinned: those pins are left out.
$(TRACKERS_VENV)/ready: $(INPUTS)
	$(call install,$(TRACKERS_VENV),dev)
	grep -vE '^(googleapis|opentelemetry|pillow|protobuf|pyarrow|python-dateutil)' constraints.txt > $(TRACKERS_VENV)/pins
	$(TRACKERS_VENV)/bin/python -m pip install --quiet -c $(TRACKERS_VENV)/pins --group trackers
	@touch $@

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
