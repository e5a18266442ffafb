"""Batches as rows: what is known of an array of ids is looked up once."""

import made
import numpy as np
import pytest

from sonde.store.row_builder import RowBuilder
from sonde.store.segments import Attempt


@pytest.fixture
def builder():
    built = RowBuilder(Attempt(0, 0, "aaaa"))
    built.sites([(info, 0) for info in made.sites(3)])
    return built


def test_ids_that_come_again_are_not_looked_up_again(builder):
    ids = np.arange(3, dtype=np.int32)
    first = builder._known(ids)
    assert builder._known(ids) is first
    assert np.array_equal(builder._known(ids.copy()).codes, first.codes)


def test_ids_are_looked_up_again_when_sites_were_declared(builder):
    ids = np.array([0, 3], dtype=np.int32)
    with pytest.raises(ValueError, match="site id 3 was not declared"):
        builder._known(ids)
    builder.sites([(info, 0) for info in made.sites(4)[3:]])
    assert len(builder._known(ids).codes) == 2


def test_steps_that_come_twice_are_noticed_though_their_ids_are_the_same_array(builder):
    ids = np.arange(3, dtype=np.int32)
    batches = [made.batch(step, 3) for step in (0, 1, 1)]
    for batch in batches:
        object.__setattr__(batch, "ids", ids)
    assert [builder.sketches([(batch, 0)]).repeats for batch in batches] == [False, False, True]
