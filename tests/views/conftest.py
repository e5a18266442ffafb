"""One recorded run for all tests that only read it."""

import pytest
import told as told_


@pytest.fixture(scope="session")
def told(tmp_path_factory):
    """A run with a graph, strange values, two phases, numbers and metrics."""
    return told_.recorded(tmp_path_factory.mktemp("views") / "one")


@pytest.fixture(scope="session")
def subject(told):
    found = told.subject()
    yield found
    found.run.close()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """The same by three ranks, with other values each."""
    return told_.recorded(tmp_path_factory.mktemp("views") / "three", range(12), ranks=3)
