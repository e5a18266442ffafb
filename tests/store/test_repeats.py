"""A segment says whether one of its numbers may have come before; readers trust it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sonde.record import NumberBatch
from sonde.store.row_builder import RowBuilder
from sonde.store.segments import Attempt

KEYS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "m", "n"])), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["train", "eval"]), KEYS), min_size=1))
def test_numbers_repeat_if_a_key_comes_again_at_no_later_step(batches):
    builder = RowBuilder(Attempt(0, 0, "token"))
    last = {}
    for step, phase, keys in batches:
        names, modules = [k[0] for k in keys], [k[1] for k in keys]
        batch = NumberBatch(step, phase, names, modules, np.zeros(len(keys)))
        again = False
        for key in keys:
            again |= last.get((phase, key), -1) >= step
            last[phase, key] = max(step, last.get((phase, key), -1))
        if keys:
            assert builder.numbers([(batch, 0)]).repeats == again
