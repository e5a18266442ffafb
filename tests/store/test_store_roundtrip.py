"""What is written is what is read: any batches, any order and split, any ranks and attempts."""

import math
from dataclasses import dataclass, field

import made
import numpy as np
import pytest
from faulty import QuickFiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sonde
from sonde.record import COUNTS, EXTREMA, SUMS, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.sketch import Sketch
from sonde.store import Writer, open_run
from sonde.store.writing.compaction import compact

N_SITES = 3


@dataclass
class Attempt:
    """What one attempt of one rank hands over."""

    rank: int
    resume_from_step: int | None
    operations: list = field(default_factory=list)


@st.composite
def histories(draw):
    """Attempts of up to two ranks, each a list of batches with flushes in between."""
    history = []
    for rank in range(draw(st.integers(1, 2))):
        for number in range(draw(st.integers(1, 2))):
            resume = draw(st.integers(0, 6)) if number else None
            operations = draw(
                st.lists(
                    st.one_of(
                        st.tuples(
                            st.just("sketches"),
                            st.integers(0, 8),
                            st.sampled_from(["train", "eval"]),
                            st.sets(st.integers(0, N_SITES - 1), min_size=1),
                        ),
                        st.tuples(
                            st.just("numbers"),
                            st.integers(0, 8),
                            st.sampled_from(["train", "eval"]),
                            st.sampled_from([None, "h.0"]),
                        ),
                        st.tuples(st.just("flush")),
                    ),
                    max_size=8,
                )
            )
            history.append(Attempt(rank, resume, operations))
    return history


def play(path, history, seed):
    """Write the history; returns all sketches and numbers that were handed over."""
    rng = np.random.default_rng(seed)
    sketches, numbers = [], []
    for attempt in history:
        with Writer(
            path,
            rank=attempt.rank,
            world_size=2,
            resume_from_step=attempt.resume_from_step,
            compact=False,
            flush_s=60,
            files=QuickFiles(),
        ) as writer:
            writer.sites(made.sites(N_SITES))
            for operation in attempt.operations:
                if operation[0] == "flush":
                    assert writer.flush()
                elif operation[0] == "sketches":
                    _, step, phase, ids = operation
                    made_now = made.real_sketches(rng, len(ids))
                    ordered = np.array(sorted(ids), np.int32)
                    writer.sketches(SketchBatch(step, phase, ordered, made.columns(made_now)))
                    sketches += [
                        (attempt, step, phase, i, s)
                        for i, s in zip(sorted(ids), made_now, strict=True)
                    ]
                else:
                    _, step, phase, module = operation
                    value = float(rng.normal())
                    writer.numbers(NumberBatch(step, phase, ["x"], [module], np.array([value])))
                    numbers.append((attempt, step, phase, module, value))
    return sketches, numbers


def is_replaced(history, attempt, step):
    later = history[history.index(attempt) + 1 :]
    return any(
        a.rank == attempt.rank and a.resume_from_step is not None and step >= a.resume_from_step
        for a in later
    )


def expected_sketches(history, sketches):
    found = {}
    for attempt, step, phase, site, s in sketches:
        if not is_replaced(history, attempt, step):
            key = (step, phase, made.sites(N_SITES)[site].site.name)
            found.setdefault(key, []).append(s)
    return {key: Sketch.merged(parts) for key, parts in found.items()}


def expected_numbers(history, numbers):
    found = {}
    for attempt, step, phase, module, value in numbers:
        key = (step, phase, module)
        if is_replaced(history, attempt, step):
            continue
        if key not in found or attempt.rank <= found[key][0]:
            found[key] = (attempt.rank, value)
    return {key: value for key, (_, value) in found.items()}


def assert_same_sketch(a, b):
    for name in COUNTS:
        assert getattr(a, name) == getattr(b, name), name
    for name in SUMS:
        assert math.isclose(getattr(a, name), getattr(b, name), rel_tol=1e-12), name
    for name in EXTREMA:
        assert getattr(a, name) == getattr(b, name), name
    assert np.array_equal(a.bins, b.bins)


def assert_reads(path, history, sketches, numbers):
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        expected = expected_sketches(history, sketches)
        found = run.merge(phase=None, by=("step", "phase", "name"))
        assert set(found) == set(expected)
        for key, sketch in found.items():
            assert_same_sketch(sketch, expected[key])
        rows = run.stats(phase=None, stat=["count", "rms", "p50"])
        keys = list(zip(*(rows[c].to_pylist() for c in ("step", "phase", "name")), strict=True))
        assert len(keys) == len(set(keys))
        assert set(keys) == set(expected)
        for key, count, rms, median in zip(
            keys, *(rows[c].to_pylist() for c in ("count", "rms", "p50")), strict=True
        ):
            assert count == expected[key].count
            assert rms == pytest.approx(expected[key].rms, rel=1e-9, nan_ok=True)
            assert median == pytest.approx(expected[key].quantile(0.5), rel=1e-9, nan_ok=True)
        values = run.sql(
            "select step, phase, null as module, value from scalars "
            "union all select step, phase, module, value from metrics"
        ).to_pylist()
        assert len(values) == len(expected_numbers(history, numbers))
        assert {
            (v["step"], v["phase"], v["module"]): v["value"] for v in values
        } == expected_numbers(history, numbers)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(), seed=st.integers(0, 2**31))
def test_what_is_written_is_what_is_read_before_and_after_compaction(
    tmp_path_factory, history, seed
):
    path = str(tmp_path_factory.mktemp("run") / "run")
    sketches, numbers = play(path, history, seed)
    assert_reads(path, history, sketches, numbers)
    compact(path, files=QuickFiles())
    assert_reads(path, history, sketches, numbers)


@pytest.mark.parametrize("n_flushes", [1, 2, 7, 40])
def test_the_split_into_flushes_does_not_matter(tmp_path, n_flushes):
    path = tmp_path / "run"
    with Writer(path, compact=False, flush_s=60) as writer:
        writer.sites(made.sites(4))
        for step in range(40):
            writer.sketches(made.batch(step))
            writer.numbers(made.loss(step))
            if step % max(40 // n_flushes, 1) == 0:
                assert writer.flush()
    with open_run(path, frame="arrow") as run:
        stats = run.stats(stat=["count", "sum", "max"])
        assert stats["step"].to_pylist() == [s for s in range(40) for _ in range(4)]
        assert stats["count"].to_pylist() == [
            1000 * s + 10 * i + 1 for s in range(40) for i in range(4)
        ]
        assert stats["max"].to_pylist() == [1.0 + i + s for s in range(40) for i in range(4)]
        assert run.scalars("loss")["value"].to_pylist() == [1.0 / (s + 1) for s in range(40)]
        assert run.steps == list(range(40))


def test_the_last_of_equal_numbers_wins_and_nan_is_kept(tmp_path):
    with Writer(tmp_path / "run") as writer:
        for value in (1.0, 2.0, float("nan")):
            writer.numbers(made.loss(3, value=value))
        writer.numbers(made.loss(4, value=float("-inf")))
        writer.flush()
        writer.numbers(made.loss(4, value=5.0))
    with open_run(tmp_path / "run", frame="arrow") as run:
        values = run.scalars("loss")["value"].to_pylist()
        assert math.isnan(values[0])
        assert values[1] == 5.0


def test_names_are_stored_verbatim(tmp_path):
    odd = [
        "",
        "a.b",
        "é漢字",
        "'; drop table",
        '"q"',
        "new\nline",
        "tab\t",
        "x" * 10_000,
        "..",
        "/etc",
    ]
    infos = [
        SiteInfo(i, Site(name, "attach", 0, f"slot {name}"), "f", (), "T")
        for i, name in enumerate(odd)
    ]
    with Writer(tmp_path / "run") as writer:
        writer.sites(infos)
        writer.sketches(made.batch(0, len(odd)))
        names = [info.site.name for info in infos]
        writer.numbers(
            NumberBatch(0, "train", names, [None] * len(odd), np.arange(float(len(odd))))
        )
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.sites["module"].to_pylist() == odd
        assert run.stats(stat="count")["name"].to_pylist() == names
        assert set(run.scalars()["name"].to_pylist()) == set(names)
        assert run.sketch(names[3]).count == 31


def test_a_new_dtype_of_a_site_merges_with_the_old(tmp_path):
    site = Site("fc", "output")
    with Writer(tmp_path / "run") as writer:
        writer.sites(
            [SiteInfo(0, site, "float32", (2,), "L"), SiteInfo(1, site, "bfloat16", (2,), "L")]
        )
        writer.sketches(made.batch(5, 2))
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.sites["dtype"].to_pylist() == ["bfloat16"]
        assert run.stats(stat="count")["count"].to_pylist() == [5001 + 5011]


def test_a_large_number_of_sites_and_an_empty_batch_are_kept(tmp_path):
    n = 5000
    with Writer(tmp_path / "run") as writer:
        writer.sites(made.sites(n))
        writer.sketches(made.batch(0, 0))
        writer.sketches(made.batch(1, n))
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count").num_rows == n
        assert run.merge().count == sum(1000 + 10 * i + 1 for i in range(n))


def test_a_number_logged_again_for_a_step_before_the_resumed_one_counts(tmp_path):
    for resume, value in ((None, 1.0), (3, 2.0)):
        with Writer(tmp_path / "run", resume_from_step=resume) as writer:
            writer.numbers(made.loss(0, value=value))
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.scalars()["value"].to_pylist() == [2.0]


def test_all_attempts_can_be_shown(tmp_path):
    path = tmp_path / "run"
    for resume in (None, 3, 5):
        with Writer(path, resume_from_step=resume) as writer:
            writer.sites(made.sites(1))
            for step in range(resume or 0, 8):
                writer.sketches(made.batch(step, 1))
                writer.numbers(made.loss(step, value=float(resume or 0)))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count")["step"].to_pylist() == list(range(8))
        assert run.scalars()["value"].to_pylist() == [0, 0, 0, 3, 3, 5, 5, 5]
        shown = run.stats(stat="count", all_attempts=True)
        pairs = list(zip(shown["step"].to_pylist(), shown["attempt"].to_pylist(), strict=True))
        assert pairs == sorted(
            [(s, 0) for s in range(8)]
            + [(s, 1) for s in range(3, 8)]
            + [(s, 2) for s in range(5, 8)]
        )
        assert run.scalars(all_attempts=True).num_rows == 16
        assert run.info["attempts"][1]["resume_from_step"] == 3


def test_ranks_are_merged_or_told_apart(tmp_path):
    path = tmp_path / "run"
    for rank in range(3):
        with Writer(path, rank=rank, world_size=3) as writer:
            writer.sites(made.sites(2))
            writer.sketches(made.batch(0, 2, rank=rank))
            writer.numbers(made.loss(0, rank=rank))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count")["count"].to_pylist() == [1 + 2 + 3, 11 + 12 + 13]
        assert run.stats(stat="count", rank=1)["count"].to_pylist() == [2, 12]
        assert run.stats(stat="p50", rank=1).num_rows == 2
        assert {r: s.count for r, s in run.merge(by="rank").items()} == {0: 12, 1: 14, 2: 16}
        assert run.scalars()["value"].to_pylist() == [1.0]
        assert run.scalars(rank=2)["value"].to_pylist() == [3.0]
        assert run.info["world_size"] == 3


def test_a_run_can_be_resumed_only_if_one_says_from_where(tmp_path):
    path = tmp_path / "run"
    Writer(path).close()
    with pytest.raises(sonde.RunError, match="resume=True"):
        Writer(path)
    with Writer(path, rank=1, world_size=2) as other:  # another rank of it may join
        assert other.attempt.number == 0
    with Writer(path, resume_from_step=0) as again:
        assert again.attempt.number == 1
