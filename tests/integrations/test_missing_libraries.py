"""What is said when the library of an integration is not there, and that none is loaded unasked."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sonde.integrations

ROOT = Path(__file__).parents[2]
LIBRARIES = ("accelerate", "fastai", "ignite", "keras", "lightning", "transformers")

MISSING = """
import sys
for name in ({name!r}, "pytorch_lightning"):
    sys.modules[name] = None
import sonde.integrations
try:
    sonde.integrations.{name}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_one_line_that_names_the_extra(name):
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(name=name)],
        capture_output=True,
        text=True,
        check=True,
    )
    text = f"{name} is not installed. Install it with: pip install 'sonde[{name}]'\n"
    assert done.stdout == text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert name in extras["optional-dependencies"]


def test_extras_of_trainers_are_not_in_all():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in LIBRARIES if name in str(extras["optional-dependencies"]["all"])]


def test_there_is_no_other_integration():
    with pytest.raises(AttributeError, match="has no attribute 'caffe'"):
        _ = sonde.integrations.caffe
