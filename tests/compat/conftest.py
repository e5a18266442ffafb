"""Fixtures of the drop-ins' tests."""

import pytest

from sonde import compat
from sonde.capture.open_watches import OPEN


@pytest.fixture
def installed():
    """The drop-ins under the names of the originals, for one test."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Runs and files that a test writes lie in a folder of its own; no watch outlives it."""
    monkeypatch.chdir(tmp_path)
    yield
    for watch in list(OPEN):
        watch.close(timeout_s=120)  # a busy disk is no fault of the test
