"""Reads what a report or a widget holds, as the page does."""

import base64
import gzip
import json
import re

from sonde.views import envelope


def blocks_of(text: str) -> dict[str, str]:
    """The blocks of a report, by name."""
    return dict(re.findall(r'<script type="text/plain" data-sonde="(\w+)">([^<]*)<', text))


def index_of(blocks: dict[str, str]) -> dict:
    return json.loads(_unpacked(blocks["index"]))


def answers_of(blocks: dict[str, str]) -> list[tuple[str, tuple, int | None, dict]]:
    """View, key, step and answer of all that is held."""
    bodies = {name: _unpacked(text) for name, text in blocks.items() if name.isdecimal()}
    found = []
    for view, key, step, block, at, n in index_of(blocks)["answers"]:
        answer = envelope.unpack(bodies[str(block)][at : at + n])
        found.append((view, tuple(map(str, key)), step, answer))
    return found


def _unpacked(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))
