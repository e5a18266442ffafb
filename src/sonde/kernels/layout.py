"""A row: the raw numbers of one sketch while it is being filled, and the table they stand in.

A table is an int64 array of `WORDS` columns. Words 0..5 are the counts, 6..9 the sums and 10..12
the extrema (both as float64 bit patterns), 13..15 are free, the rest is one word per bin. Kernels
add into rows; nothing is ever subtracted, so micro-batches merge by being added to the same row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import N_BINS, Sketches
from sonde.sketch import from_dense

HEADER: Final = 16
WORDS: Final = HEADER + N_BINS
ROW_BYTES: Final = WORDS * 8

Table = NDArray[np.int64]


def new_table(n_rows: int) -> Table:
    """`n_rows` empty rows."""
    table = np.zeros((n_rows, WORDS), dtype=np.int64)
    clear(table)
    return table


def clear(table: Table) -> None:
    """Make every row the empty sketch."""
    table[:] = 0
    table[:, 10:13].view(np.float64)[:] = (np.inf, -np.inf, np.inf)


def unpack(table: Table) -> Sketches:
    """The rows as columns; a copy, so the table can be filled again."""
    return from_dense(
        table[:, 0:6].copy(),
        table[:, 6:10].copy().view(np.float64),
        table[:, 10:13].copy().view(np.float64),
        table[:, HEADER:],
    )
