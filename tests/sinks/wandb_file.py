"""Reads an offline run with the messages of the wandb package."""

import json
import struct

from wandb.proto import wandb_internal_pb2


def records(path):
    """All records of a `.wandb` file."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = 7, []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + size > len(data):
            return
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))
            parts = []


def history(path):
    """Rows of the run: plain keys, and the parts of histograms in dicts."""
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            row = {}
            for item in record.history.item:
                at = row
                *above, last = item.nested_key or [item.key]
                for key in above:
                    at = at.setdefault(key, {})
                at[last] = json.loads(item.value_json)
            rows.append(row)
    return sorted(rows, key=lambda row: row["_step"])
