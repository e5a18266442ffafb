"""The README and docs/*.md: code and commands run, links lead somewhere, figures are measured."""

import csv
import re
import shlex
import tomllib

import pytest

import document
from document import LANGUAGES, ROOT, blocks, commands
from sonde.cli import parsers

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
LINKED = [*PAGES, *sorted(ROOT.glob("*.md")), ROOT / "src/sonde/store/FORMAT.md"]

ELSEWHERE = {
    "compare.md": "tests/comparison/test_compare_document.py",
    "extending.md": "tests/examples/test_extending.py",
    "figures.md": "tests/plot/test_figures_document.py",
    "notebooks.md": "tests/present/test_kernel_server.py",
    "reports.md": "tests/present/test_report.py",
    "scale.md": "tests/store/test_store_ranks.py",
    "steps.md": "tests/capture/test_steps_document.py",
    "migration.md": "tests/compat/test_migration_document.py",  # and the documents of the originals
    "metrics.md": "tests/metrics/test_metrics_document.py",
    "recording.md": "tests/capture/test_recording_document.py",
    "trackers.md": "tests/sinks/test_trackers_document.py",
    "trainers.md": "tests/integrations/test_trainers_document.py",
}
"""Documents whose code is run, and checked for what it claims, by a test of its own."""

RUN_HERE = [
    path
    for path in PAGES
    if not (path.parent.name == "docs" and path.name in ELSEWHERE)
    and any(block.language in ("python", "console") for block in blocks(path))
]


def named(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", RUN_HERE, ids=named)
def test_code_and_commands_run_in_order(path, tmp_path):
    document.run(path, tmp_path)


@pytest.mark.parametrize("path", ELSEWHERE, ids=str)
def test_a_document_that_is_run_elsewhere_is_named_there(path):
    assert path in (ROOT / ELSEWHERE[path]).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_block_has_a_language_that_is_run_or_is_output(path):
    assert [b.body[:60] for b in blocks(path) if b.language not in {*LANGUAGES, "setup"}] == []


def test_commands_name_verbs_options_targets_and_extras_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    parser = parsers()[""]
    checked = 0
    for path in PAGES:
        for block in blocks(path):
            for line in commands(block) if block.language == "console" else ():
                program, *words = shlex.split(line)
                checked += 1
                if program == "sonde":
                    parser.parse_args(words)
                elif program == "make":
                    assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), line
                elif program == "pip":
                    asked = re.findall(r"\[([\w,]+)\]", line)
                    assert {e for group in asked for e in group.split(",")} <= extras, line
                else:
                    assert program in {"torchrun", "python", "git"}, line
    assert checked >= 10


# -- links ----------------------------------------------------------------------------------------


def slugs(path):
    """Anchors of the headings of a document, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title)) for title in plain}


@pytest.mark.parametrize("path", LINKED, ids=named)
def test_links_lead_to_files_and_headings(path):
    text = re.sub(r"```.*?```|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:)([^()\s]+)\)", text)
    links += re.findall(r"(?:src|srcset|href)=\"(?!https?:)([^\"]+)\"", text)
    broken = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in slugs(target)):
            broken.append(link)
    assert broken == []


# -- the README -----------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_at_most_700_words():
    assert len(README.split()) <= 700


def rows(name):
    with (ROOT / "benchmarks" / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cells(label):
    """The cells of the row of a README table that begins with that label."""
    line = next(row for row in README.splitlines() if row.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def latest(found, mode):
    """The ratios of the last run in a mode: every step, every 10th, none."""
    last = max(int(row["call"]) for row in found if row["mode"] == mode)
    by = {r["variant"]: r["ratio"] for r in found if (r["mode"], r["call"]) == (mode, str(last))}
    return [by["every step"], by["every 10th"], by["off"]]


def test_figures_of_cost_are_those_last_measured():
    cadence = {
        row["every"]: row["ratio"] for row in rows("cadence-cpu.csv") if row["model"] == "wide"
    }
    gpu = rows("gpu-overhead.csv")
    jax = {row["case"]: row["ratio"] for row in rows("gpu-jax.csv")}  # the last run counts
    expected = {
        "2 CPU cores": [cadence["1"], cadence["10"], cadence["never"]],
        "H200, GPT-2 small, eager": latest(gpu, "eager"),
        "H200, GPT-2 small, `torch.compile`": latest(gpu, "compiled"),
        "H200, GPT-2 small in JAX": [jax["every step"], jax["every 10th"], jax["never"]],
    }
    for label, ratios in expected.items():
        assert cells(label) == [f"{float(ratio):.2f}" for ratio in ratios], label


def test_figures_of_the_comparison_are_those_last_measured():
    measured = {(r["variant"], r["model"]): float(r["ratio"]) for r in rows("overhead-cpu.csv")}
    wide = {variant: ratio for (variant, model), ratio in measured.items() if model == "wide"}
    printed = [
        float(n) for n in re.findall(r"\| ([\d.]+)(?: \([\d.]+\))? \|$", README, re.MULTILINE)
    ]
    assert len(printed) >= 5
    for number in printed[-5:]:
        digits = 1 if number > 9 else 2
        assert any(round(ratio, digits) == number for ratio in wide.values()), number


def test_the_documentation_index_names_every_page():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    generated = {"words.md", "index.md"}
    for path in DOCS:
        name = path.relative_to(ROOT / "docs").as_posix()
        assert f": {name}" in site or name in generated, name
