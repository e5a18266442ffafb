"""Pictures in the documents are made by scripts that are here, and are those of today's scripts."""

import hashlib
import json
import re
import sys

import pytest

from document import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import tutorial_pictures

IMAGES = ROOT / "docs" / "images"
MADE_BY = json.loads((IMAGES / "tutorials" / "made_by.json").read_text(encoding="utf-8"))
SCRIPTS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
MAX_BYTES = 2_000_000


def test_there_are_five_tutorials_in_the_site_and_in_the_readme():
    assert len(SCRIPTS) == 5
    site, readme = (ROOT / "mkdocs.yml").read_text(), (ROOT / "README.md").read_text()
    for script in SCRIPTS:
        assert f"tutorials/{script.stem}.md" in site
        assert f"examples/tutorials/{script.name}" in readme


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_pictures_of_a_tutorial_are_those_of_its_script(script):
    made = MADE_BY[script.name]
    assert made["sha256"] == tutorial_pictures.digest(script), "run `make pictures`"
    shown = re.findall(r"images/tutorials/([\w.]+)", script.read_text(encoding="utf-8"))
    assert sorted(shown) == made["pictures"]
    assert all((IMAGES / "tutorials" / name).exists() for name in shown)


def test_every_picture_is_shown_and_has_a_script():
    scripts = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.py"))
    views = re.findall(r'^    "(\w+)": "#/', scripts, re.MULTILINE)
    named = {f"{view}-" for view in views} | {"training-", "coord-check"}
    for path in IMAGES.glob("*.*"):
        assert any(path.name.startswith(name) for name in named), path.name


def test_moving_pictures_are_small():
    found = sorted(IMAGES.glob("training-*.webp"))
    assert [path.stem for path in found] == ["training-dark", "training-light"]
    assert all(path.stat().st_size < MAX_BYTES for path in found)
    assert len({hashlib.sha256(path.read_bytes()).digest() for path in found}) == 2
