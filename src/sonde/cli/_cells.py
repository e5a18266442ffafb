"""Cells for files that other programs open: lists as text, and no text that runs as a formula."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sonde.cli import _text

_FORMULA: Final = r"^[=+\-@\t\r]"


def for_csv(table: pa.Table) -> pa.Table:
    """Text that a spreadsheet would take for a formula gets a quote in front."""
    columns = {}
    for name in table.schema.names:
        column = without_lists(table[name])
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_formula = pc.match_substring_regex(column, _FORMULA)
            quoted = pc.binary_join_element_wise("'", column, "")
            column = pc.if_else(is_formula, quoted, column)
        columns[name] = column
    return pa.table(columns)


def for_terminal(table: pa.Table) -> pa.Table:
    """The table without characters that could steer a terminal."""
    columns = {}
    for name in table.schema.names:
        column = table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = [None if v is None else _text.clean(v) for v in column.to_pylist()]
            column = pa.array(texts, pa.string())
        columns[_text.clean(name)] = column
    return pa.table(columns)


def without_lists(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, lists written as text: `[4, 8]`."""
    if not pa.types.is_list(column.type):
        return column
    texts = [None if v is None else str(v) for v in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])
