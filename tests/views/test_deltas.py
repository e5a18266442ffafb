"""Following a run: what a page has after deltas is what it would get by asking anew."""

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import SITES, Told, asked, graph, infos, write_step

from sonde.record import NumberBatch
from sonde.store import Writer
from sonde.views.numbers.columns import stride_for

QUESTIONS = {
    "heat": {"kind": "output", "columns": 16},
    "kymograph": {
        "site": "h.0.mlp/output/0",
        "columns": 16,
        "range": "fixed",
        "low": -8,
        "high": 8,
    },
    "lines": {"name": ["loss", "lr"], "columns": 16},
}


class Page:
    """Keeps the columns of a view as a page does, by the rules of API.md."""

    def __init__(self, view):
        self.view = view
        self.columns = {}
        self.cursor = None
        self.deltas = 0

    def follow(self, subject):
        after = {} if self.cursor is None else {"after": self.cursor}
        spec = asked(subject, self.view, **QUESTIONS[self.view], **after)
        axis = spec if self.view == "lines" else spec.columns
        if axis.from_step is None:
            self.columns = {}
        else:
            self.deltas += 1
            self.columns = {k: v for k, v in self.columns.items() if k[1] < axis.from_step}
        came = columns_of(self.view, spec)
        assert not set(came) & set(self.columns), "a delta repeats nothing"
        self.columns |= came
        self.cursor = axis.cursor
        return len(came)


def columns_of(view, spec):
    """Columns by series and first step; for a column all that is drawn."""
    if view == "lines":
        return {
            (line.label + line.phase, spec.first[i]): tuple(
                str(getattr(spec, c)[i]) for c in ("until", "low", "high", "last", "flags", "count")
            )
            for line in spec.lines
            for i in range(line.start, line.start + line.length)
        }
    per = spec.values.T if view == "heat" else spec.counts
    flags = spec.flags.T if view == "heat" else spec.total[:, None]
    ends = zip(spec.columns.last, spec.columns.steps, strict=True)
    return {
        ("", first): (*map(str, end), per[i].tobytes(), flags[i].tobytes())
        for i, (first, end) in enumerate(zip(spec.columns.first, ends, strict=True))
    }


def check(told, pages):
    """Every page has what a new one would get."""
    subject = told.subject()
    try:
        came = [page.follow(subject) for page in pages]
        for page in pages:
            fresh = Page(page.view)
            fresh.follow(subject)
            assert page.columns == fresh.columns, page.view
        return came
    finally:
        subject.run.close()


@pytest.fixture
def live(tmp_path):
    """A run that is being written: `advance(steps)` puts steps on disk."""
    told = Told(tmp_path / "live")
    with ExitStack() as stack:
        writer = stack.enter_context(Writer(told.path, compact=False, flush_s=60))
        writer.sites(infos())
        writer.graph(graph())

        def advance(steps, **options):
            for step in steps:
                write_step(told, writer, step, **options)
            assert writer.flush(30)

        yield told, advance, writer


def test_deltas_are_the_full_answer_as_the_run_grows(live):
    told, advance, writer = live
    advance(range(5))
    pages = [Page(view) for view in QUESTIONS]
    check(told, pages)
    for steps in (range(5, 6), range(6, 9), range(9, 9), range(9, 15)):
        advance(steps)
        came = check(told, pages)
        assert came[0] == len(steps), "a heatmap is sent what is new and no more"
    assert all(page.deltas == 4 for page in pages)
    advance(range(15, 40))  # the stride doubles: everything is sent again
    check(told, pages)
    assert all(page.deltas == 4 for page in pages)
    advance([41, 47])
    check(told, pages)
    assert all(page.deltas == 5 for page in pages)
    late = NumberBatch(3, "train", ["loss"], [None], np.array([-123.0]))
    writer.numbers(late)
    assert writer.flush(30)
    check(told, pages)


def test_a_phase_that_is_not_on_screen_changes_nothing(live):
    told, advance, _ = live
    advance(range(5))
    pages = [Page("heat"), Page("kymograph")]
    check(told, pages)
    advance([2, 4], phase="eval", scale=3.0)
    check(told, pages)


def test_a_second_rank_that_comes_late_is_told(live):
    told, advance, _ = live
    advance(range(6))
    pages = [Page(view) for view in QUESTIONS]
    check(told, pages)
    with Writer(told.path, rank=1, world_size=2, compact=False) as other:
        other.sites(infos())
        for step in range(3, 6):
            write_step(told, other, step, rank=1)
    check(told, pages)
    advance(range(6, 8))
    check(told, pages)


def test_a_resumed_run_is_told_anew(tmp_path):
    told = Told(tmp_path / "resumed")
    pages = [Page(view) for view in QUESTIONS]
    for begin, end, scale in ((0, 8, 1.0), (5, 12, 2.0), (11, 13, 3.0)):
        resume = {"resume_from_step": begin} if begin else {}
        with Writer(told.path, compact=False, **resume) as writer:
            writer.sites(infos())
            for step in range(begin, end):
                for site in SITES:
                    told.values.pop((site.name, step, "train"), None)
                write_step(told, writer, step, scale=scale)
        check(told, pages)
    subject = told.subject()
    heat = asked(subject, "heat", kind="output")
    head = [row.path for row in heat.rows].index("head")
    known = [np.sqrt((told.seen("head/output/0", s) ** 2).mean()) for s in range(13)]
    np.testing.assert_allclose(heat.values[head], known, rtol=1e-6)
    lines = asked(subject, "lines", name="lr")
    assert lines.first.tolist() == list(range(13))
    loss = asked(subject, "lines", name="loss").last
    scales = [1] * 5 + [2] * 6 + [3] * 2
    np.testing.assert_allclose(loss, [s * 10 / (1 + i) for i, s in enumerate(scales)])
    subject.run.close()


@pytest.mark.parametrize(
    "cursor", ["", "x", "!!!!", "eJwDAAAAAAE", "A" * 4000, "eJyrVkpVslJQMlTSUVAqBtJGtQAxSQT6"]
)
def test_a_cursor_from_elsewhere_gets_the_whole_answer(subject, cursor):
    heat = asked(subject, "heat", kind="output", after=cursor)
    assert heat.columns.from_step is None
    assert len(heat.columns.first) == 40


def test_another_question_does_not_take_the_cursor(subject):
    cursor = asked(subject, "heat", kind="output").columns.cursor
    assert asked(subject, "heat", kind="output", after=cursor).columns.from_step is not None
    for other in ({"kind": "param_grad"}, {"stat": "max"}, {"first": 3}, {"norm": "z"}):
        question = {"kind": "output", **other}
        found = asked(subject, "heat", **question, after=cursor)
        assert found.columns.from_step is None, other


@given(
    st.lists(st.integers(-(10**6), 10**9), min_size=1, max_size=60, unique=True),
    st.integers(8, 64),
)
def test_the_stride_is_the_smallest_that_fits(steps, limit):
    steps = np.array(sorted(steps))
    stride = stride_for(steps, limit)
    assert len(np.unique(steps // stride)) <= limit
    assert stride == 1 or len(np.unique(steps // (stride // 2))) > limit
