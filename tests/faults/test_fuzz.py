"""A small part of `make fuzz`, the same each time."""

import random

import fuzz
import pytest
import whole


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzzed") / "run"
    whole.write(path)
    return path


def test_every_kind_of_file_is_fuzzed(base):
    assert all(fuzz.files_of(base, kind) for kind in fuzz.KINDS)


def test_mutated_runs_are_read_without_a_crash_a_hang_or_a_wrong_number(base):
    found = fuzz.campaign(base, mutations=3, seed=15)
    assert set(found["mutations"]) == set(fuzz.KINDS)
    assert 0 < found["forged"] < sum(found["mutations"].values())
    assert found["failures"] == []
    assert found["peak_bytes"] < fuzz.MEMORY_BYTES


def test_the_judge_notices_what_it_is_for(base, tmp_path):
    """Rows that the base does not hold are wrong numbers; a process that dies is a crash."""
    right = {"records": set(), "numbers": set(), "values": set()}
    found = fuzz.judge(base, "live", ["x"], right, random.Random(0), forged=False)
    assert "a wrong number" in found[0]
    judge = fuzz.Judge(tmp_path / "nothing")
    found = judge.ask({"seed": 0, "kind": "live", "n": 0, "forged": False})
    assert "crashes" in found["wrong"][0]


@pytest.mark.parametrize(
    ("kind", "first", "seed"),
    [("traces", 39, 77), ("live_traces", 263, 77), ("sites", 133, 77), ("stats", 57, 78)],
    ids=[
        "rows of no rank",
        "rows of no attempt",
        "a segment that hides rows of others",
        "bins that are no list",
    ],
)
def test_what_a_long_campaign_found_once_is_not_found_again(base, kind, first, seed):
    found = fuzz.campaign(base, mutations=1, seed=seed, kinds=(kind,), first=first)
    assert found["failures"] == []
