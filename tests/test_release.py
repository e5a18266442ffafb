"""A release is consistent: version, changelog, citation, workflows and the files of a project."""

import re
from pathlib import Path

import pytest

from sonde._version import VERSION

ROOT = Path(__file__).parent.parent


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_has_a_section_for_this_version():
    assert re.search(
        rf"^## {re.escape(VERSION)} - \d{{4}}-\d\d-\d\d$", text("CHANGELOG.md"), re.MULTILINE
    )
    assert text("CHANGELOG.md").index("## Unreleased") < text("CHANGELOG.md").index(f"## {VERSION}")


def test_the_citation_names_this_version():
    assert f"\nversion: {VERSION}\n" in text("CITATION.cff")


@pytest.mark.parametrize(
    "name",
    [
        *("LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "CONTRIBUTING.md"),
        *(".pre-commit-config.yaml", ".github/pull_request_template.md"),
        *(".github/ISSUE_TEMPLATE/bug.md", ".github/ISSUE_TEMPLATE/feature.md"),
    ],
)
def test_a_public_project_has(name):
    assert len(text(name)) > 100


def test_workflows_call_what_developers_call():
    yaml = pytest.importorskip("yaml")
    makefile = text("Makefile")
    workflows = {
        p.stem: yaml.safe_load(p.read_text()) for p in ROOT.glob(".github/workflows/*.yml")
    }
    assert set(workflows) == {"test", "wheels"}
    runs = [
        step["run"]
        for workflow in workflows.values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert "make test" in runs
    assert "make docs" in runs
    for run in runs:
        if run.startswith("make "):
            assert re.search(rf"^{run.split()[1]}:", makefile, re.MULTILINE), run
        for path in re.findall(r"tools/\w+\.py", run):
            assert (ROOT / path).exists(), path


def test_wheels_are_built_for_linux_macos_and_windows_without_extensions():
    workflow = text(".github/workflows/wheels.yml")
    for wanted in ("manylinux", "macos-14", "windows-latest", "SONDE_NO_EXTENSIONS=1", "--sdist"):
        assert wanted in workflow, wanted
    assert "SONDE_NO_EXTENSIONS" in text("setup.py")


def test_hooks_before_a_commit_use_tools_of_the_environment():
    yaml = pytest.importorskip("yaml")
    (local,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert local["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") for hook in local["hooks"])
