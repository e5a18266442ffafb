"""The run that figures are drawn of."""

import pytest
from small_run import write

import sonde


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "run"
    write(path)
    return sonde.open(path)
