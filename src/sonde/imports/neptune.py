"""Offline files of Neptune, `run_operations.sqlite3`: series, histograms and configs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from sonde._errors import SondeError
from sonde.imports.foreign import Buckets, ForeignRun
from sonde.imports.wire import Field, fields, first, messages, real, reals, text, varints, whole

_STEP, _ASSIGN, _APPEND = 1, 4, 8
_UPDATE = 0
"""The type of operation that holds data."""


def read(name: str, path: Path) -> ForeignRun:
    """One file as a run."""
    run = ForeignRun("Neptune", name)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "select operation from run_operations where operation_type = ? "
                "order by sequence_id",
                [_UPDATE],
            )
            for (operation,) in rows:
                _take(run, operation)
    except (sqlite3.Error, SondeError) as error:
        run.notes.append(f"`{path.name}` cannot be read to its end: {error}.")
    return run


def _take(run: ForeignRun, operation: bytes) -> None:
    at = first(operation, _STEP)
    parts = dict(fields(at)) if isinstance(at, bytes) else {}
    if parts.get(2):
        run.notes.append("Steps between whole numbers are rounded down.")
    step = whole(parts.get(1))
    for number, keep in ((_APPEND, True), (_ASSIGN, False)):
        for entry in messages(operation, number):
            key, value = text(first(entry, 1)), _value(first(entry, 2))
            if keep:
                run.add(step, key, value)
            elif isinstance(value, str | int | float | bool):
                run.config[key] = value


def _value(data: Field | None) -> object:
    for number, value in fields(data) if isinstance(data, bytes) else ():
        if number == 1:
            return real(value)
        if number in {3, 5}:
            return whole(value) if number == 3 else bool(value)
        if number == 6:
            return text(value)
        if number == 14 and isinstance(value, bytes):
            return _histogram(value)
    return None


def _histogram(data: bytes) -> Buckets | None:
    edges = reals(data, 1)
    found = dict(fields(data))
    counts = np.empty(0)
    if isinstance(found.get(4), bytes):
        counts = np.array(varints(found[4], 1), np.float64)  # type: ignore[arg-type]  # bytes
    return Buckets(edges, counts) if len(edges) == len(counts) + 1 else None
