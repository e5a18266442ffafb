"""JSON files carry their checksum, and names of segments say what is inside."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.store import documents, provenance, segments
from sonde.store.segments import Attempt, SegmentName

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text().filter(lambda k: k != "crc32"), plain, max_size=5))
def test_what_is_dumped_is_what_is_parsed(document):
    found = documents.parse(documents.dump(document))
    assert found == documents.to_plain(document)
    json.loads(documents.dump(document))


@given(st.dictionaries(st.text(), plain, max_size=3), st.data())
def test_any_change_of_content_is_noticed(document, data):
    dumped = documents.dump(document)
    at = data.draw(st.integers(0, len(dumped) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(dumped)
    changed[at] ^= 1 << bit
    try:
        found = documents.parse(bytes(changed))
    except documents.DamagedError:
        return
    assert found == documents.parse(dumped)


def test_numbers_of_numpy_stay_numbers():
    import numpy as np

    found = documents.to_plain({"i": np.int64(3), "f": np.float32(0.5), "n": np.float64("nan")})
    assert found == {"i": 3, "f": 0.5, "n": "nan"}


def test_what_json_cannot_hold_is_kept_as_text():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    deep = []
    deep.append(deep)
    found = documents.parse(
        documents.dump(
            {"f": float("nan"), "odd": Odd(), "deep": deep, "s": {1}, 3: b"x", "t": (1, 2)}
        )
    )
    assert found["f"] == "nan"
    assert found["odd"] == "<Odd>"
    assert found["s"] == [1]
    assert found["3"] == "b'x'"
    assert found["t"] == [1, 2]
    assert len(json.dumps(found["deep"])) < 1000


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 2**16 - 1),
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.integers(0, 2**32 - 1),
)
def test_names_of_segments_survive_the_way_there_and_back(rank, number, token, first, more, crc):
    name = SegmentName(Attempt(rank, number, f"{token:04x}"), first, first + more, f"{crc:08x}")
    assert segments.parse_name(str(name), rank) == name
    assert segments.parse_rank_folder(segments.rank_folder(rank)) == rank


@pytest.mark.parametrize(
    "name",
    [
        "a0000-9f3c-00000001-00000000-00000000.parquet",
        "a000-9f3c-00000000-00000000-00000000.parquet",
        "a0000-9f3c-00000000-00000000.parquet",
        "a0000-9F3C-00000000-00000000-00000000.parquet",
        "a0000-9f3c-00000000-00000000-00000000.parquet.tmp",
        "a0000-9f3c-0000000000-00000000-00000000.parquet",
        "../a0000-9f3c-00000000-00000000-00000000.parquet",
        "a٠٠٠٠-9f3c-00000000-00000000-00000000.parquet",
        "",
    ],
)
def test_other_names_are_not_taken_for_segments(name):
    assert segments.parse_name(name, 0) is None


def test_secrets_on_the_command_line_are_blotted_out():
    given = [
        "train.py",
        "--lr",
        "1",
        "--hf-token",
        "abc",
        "--password=abc",
        "--api_key",
        "-v",
        "key",
    ]
    assert provenance.command(given) == [
        *("train.py", "--lr", "1", "--hf-token", "***", "--password=***", "--api_key", "-v", "key")
    ]


def test_the_start_of_a_process_tells_it_from_another_of_the_same_number():
    import os

    assert provenance.process_start(os.getpid()) == provenance.process_start(os.getpid())
    assert provenance.process_start(2**22 + 5) is None
