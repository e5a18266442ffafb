"""C extensions are used with the sources that they were built from, and with no others."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from sonde import _built
from sonde.capture import native
from sonde.kernels import c

PACKAGE = Path(sonde.__file__).parent
PROGRAM = """
import sys, torch, sonde
from sonde.capture import native
from sonde.kernels import c
print(native.AVAILABLE, c.available())
model = torch.nn.Linear(2, 2)
with sonde.watch(model, dir=sys.argv[1], name="run", every=1) as watch:
    model(torch.ones(3, 2)).sum().backward()
    watch.step()
with sonde.open(sys.argv[1] + "/run") as run:
    print(run.merge("", kind="output").count)
"""


@pytest.mark.skipif(not native.AVAILABLE or not c.available(), reason="there is no compiler")
@pytest.mark.parametrize(
    ("options", "is_stale"), [([], False), ([], True), (["-W", "error"], True)]
)
def test_an_extension_of_other_sources_is_refused_with_a_warning_and_everything_is_recorded(
    tmp_path, options, is_stale
):
    copy = tmp_path / "package" / "sonde"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "static"))
    if is_stale:
        with (copy / "capture" / "c" / "hooks.c").open("a") as file:
            file.write("/* changed */\n")
    done = subprocess.run(
        [sys.executable, "-P", *options, "-c", PROGRAM, tmp_path],
        env={"PYTHONPATH": str(copy.parent), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stderr.count("was built from other C sources than those beside it")
    assert done.stdout.split() == [*([str(not is_stale)] * 2), "6"]
    assert told == (2 if is_stale else 0), done.stderr


def test_without_sources_there_is_nothing_to_compare_with(tmp_path):
    assert _built.stamp_of(str(tmp_path)) == ""
