"""Fixtures of the drop-ins' tests."""

import pytest

from sonde import compat


@pytest.fixture
def installed():
    """The drop-ins under the names of the originals, for one test."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Runs and files that a test writes lie in a folder of its own."""
    monkeypatch.chdir(tmp_path)
