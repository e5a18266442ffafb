"""Traced variables at a step: every cell is what numpy says of the elements behind it, and no value
is too large, too strange or too damaged to be asked about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from told import asked

from sonde.record import Site, SiteInfo
from sonde.store import Writer, open_run, packing
from sonde.store.packing import PackedArray
from sonde.store.tensors import TracedValue
from sonde.views import envelope
from sonde.views.runs.opened_run import NotFoundError, OpenedRun
from sonde.views.traced import variable
from sonde.views.traced.matrix import matrix

SOURCE = """\
    @staticmethod
    def forward(self, x):
        y = x.square()
        z = (
            y + 1
        )
        return z
"""
FIRST = 41
LINES = {"x": 42, "y": 43, "z": 44, "": 47}


def value(slot, array, step=0, call=0, phase="train", line=43, module="h.0"):
    if isinstance(array, np.ndarray):
        dense = np.ascontiguousarray(array)
        array = PackedArray(str(array.dtype), array.shape, dense.reshape(-1).view(np.uint8))
    is_tensor = isinstance(array, PackedArray)
    tree, parts = packing.flatten(array)
    name = f"{module}.{slot}" if module else slot
    kind = "tensor" if is_tensor else "value"
    tree = None if is_tensor else tree
    return TracedValue(name, module, slot, step, phase, call, line, kind, tree, parts)


def source(name="h.0.forward", text=SOURCE, first=FIRST):
    return TracedValue(name, "", name, -1, "", 0, first, "source", text)


def recorded(path, values, rank=0, ranks=1, sites=None):
    """A run with these values, and a site for each variable, or for those of `sites`."""
    some = [v for v in values if v.step >= 0] if sites is None else sites
    sites = dict.fromkeys(Site(v.module, "local", v.call, v.slot) for v in some)
    with Writer(path, rank=rank, world_size=ranks, compact=False) as writer:
        writer.sites([SiteInfo(i, site, "float32", (2,), "M") for i, site in enumerate(sites)])
        writer.sites([SiteInfo(99, Site("h.0", "output"), "float32", (2,), "M")])
        assert writer.tensors(values, wait_s=10)
    return OpenedRun(open_run(path, frame="arrow"), "id")


def site(slot, call=0, module="h.0"):
    return Site(module, "local", call, slot).name


def array_of(x):
    return PackedArray(str(x.dtype), x.shape, np.ascontiguousarray(x).reshape(-1).view(np.uint8))


numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0])


@given(
    arrays(
        np.float32, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9), elements=numbers
    ),
    st.integers(0, 90),
    st.integers(1, 10),
    st.integers(1, 10),
    st.sampled_from([1, 2, 5, 1 << 20]),
)
def test_every_cell_is_what_numpy_says_of_its_elements(x, item, rows, columns, at_once):
    found = matrix(array_of(x), item=item, rows=rows, columns=columns, at_once=at_once)
    flat = x.reshape((-1, *((1, 1, *x.shape)[-2:]))) if x.size else np.empty((0, 0, 0))
    assert found.items == len(flat)
    if not len(flat):
        assert found.values.size == found.flags.size == found.rows == found.columns == 0
        return
    plane = flat[min(item, len(flat) - 1)].astype(np.float64)
    np.testing.assert_array_equal(plane, x[found.index].reshape(plane.shape))
    assert plane.shape == (found.height, found.width)
    assert found.rows <= rows
    assert found.columns <= columns
    assert found.values.shape == (found.rows, found.columns)
    assert found.not_finite == (~np.isfinite(plane)).sum()
    covered = 0
    for r in range(found.rows):
        for c in range(found.columns):
            part = plane[
                r * found.cell_rows : (r + 1) * found.cell_rows,
                c * found.cell_columns : (c + 1) * found.cell_columns,
            ]
            covered += part.size
            finite = part[np.isfinite(part)]
            told = part[~np.isnan(part)]
            assert (found.flags[r, c] == 2) == (finite.size < part.size)
            assert found.low[r, c] == told.min() if told.size else np.isnan(found.low[r, c])
            assert found.high[r, c] == told.max() if told.size else np.isnan(found.high[r, c])
            if finite.size:
                assert abs(found.values[r, c]) == np.abs(finite).max()
                assert found.values[r, c] in finite
            else:
                assert np.isnan(found.values[r, c])
    assert covered == plane.size, "every element is behind one cell"
    finite = plane[np.isfinite(plane)]
    if finite.size:
        assert (found.limits.min, found.limits.max) == (finite.min(), finite.max())


@pytest.mark.parametrize(
    "x",
    [
        np.array([[True, False]]),
        np.array([[-(2**53), 2**53]]),
        np.array([[1e300, -1e308]]),
        np.array([[255, 0]], np.uint8),
        np.array([[1.5, -2]], np.float16),
    ],
)
def test_small_matrices_are_their_elements_in_every_dtype(x):
    found = matrix(array_of(x), item=0, rows=256, columns=256)
    np.testing.assert_array_equal(found.values, x.astype(np.float64))
    np.testing.assert_array_equal(found.low, found.high)


def test_numbers_that_numpy_does_not_know_are_exact_and_complex_ones_count_by_magnitude():
    bits = np.array([[0x3F80, 0xFF80, 0x7FC0]], np.uint16)  # 1, -inf, NaN
    found = matrix(
        PackedArray("bfloat16", (1, 3), bits.reshape(-1).view(np.uint8)), item=0, rows=9, columns=9
    )
    np.testing.assert_array_equal(found.values, [[1, np.nan, np.nan]])
    np.testing.assert_array_equal(found.low, [[1, -np.inf, np.nan]])
    assert found.flags.tolist() == [[1, 2, 2]]
    found = matrix(array_of(np.array([3 + 4j], np.complex64)), item=0, rows=9, columns=9)
    assert found.values.tolist() == [[5.0]]


def test_it_is_the_last_value_at_or_before_the_step_with_the_line_that_gave_it(tmp_path):
    kept = {3: np.full((2, 2), 3.0), 7: np.full((2, 2), 7.0), 8: np.full((2, 2), 8.0)}
    values = [value("forward.y", x, step, line=LINES["y"]) for step, x in kept.items()]
    subject = recorded(tmp_path / "run", [source(), *values])
    for step, (is_at, before, after) in {
        3: (3, None, 7),
        6: (3, None, 7),
        7: (7, 3, 8),
        100: (8, 7, None),
        None: (8, 7, None),
    }.items():
        found = asked(
            subject, "variable", site=site("forward.y"), **({"step": step} if step else {})
        )
        assert (found.step, found.previous, found.next) == (is_at, before, after)
        np.testing.assert_array_equal(found.matrix.values, kept[is_at])
        assert (found.dtype, found.shape, found.rank, found.of) == ("float64", (2, 2), 0, 1)
        said = f"kept at step {is_at}, the last one up to step {step}" in found.notes
        assert said == (step is not None and step != is_at)
        assert found.method == "h.0.forward"
        assert [line.number for line in found.lines] == [41, 42, 43, 44, 45]
        (here,) = [line for line in found.lines if line.is_here]
        assert (here.number, here.text) == (43, "    y = x.square()")
    before = asked(subject, "variable", site=site("forward.y"), step=2)
    assert (before.step, before.next, before.matrix) == (None, 3, None)
    assert before.notes == ("no value was kept up to here: the first is of step 3",)
    subject.run.close()


def test_values_of_one_step_items_and_calls_are_told_apart(tmp_path):
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    values = [
        value("forward.x", x, line=LINES["x"]),
        value("forward.x", x + 100, line=LINES["y"]),
        value("forward.x", x + 200, call=1),
        value("forward.x", x + 300, phase="eval"),
    ]
    subject = recorded(tmp_path / "run", [source(), *values])

    def told(**more):
        return asked(subject, "variable", site=site("forward.x", more.pop("call", 0)), **more)

    assert told().of == 2
    assert (told().nth, told(nth=0).nth, told(nth=99).nth) == (1, 0, 1)
    assert [line.number for line in told(nth=0, context=0).lines] == [LINES["x"]]
    np.testing.assert_array_equal(told(nth=0, item=4).matrix.values, x[1, 1])
    assert told(item=4).matrix.index == (1, 1)
    np.testing.assert_array_equal(told(item=4).matrix.values, x[1, 1] + 100)
    assert told(item=1 << 40).matrix.item == 5
    np.testing.assert_array_equal(told(call=1).matrix.values, x[0, 0] + 200)
    np.testing.assert_array_equal(told(phase="eval").matrix.values, x[0, 0] + 300)
    assert told(phase="odd").notes == ("no value was kept in this phase and rank",)
    subject.run.close()


def test_a_rank_has_its_own_values_and_the_first_is_shown_when_none_is_named(tmp_path):
    for rank in (1, 2):
        x = np.full((1, 2), float(rank))
        recorded(tmp_path / "run", [value("forward.x", x, 5 - rank)], rank, 3).run.close()
    subject = OpenedRun(open_run(tmp_path / "run", frame="arrow"), "id")
    found = asked(subject, "variable", site=site("forward.x"))
    assert (found.rank, found.step, found.matrix.values.tolist()) == (1, 4, [[1.0, 1.0]])
    assert "rank 1" in found.notes
    found = asked(subject, "variable", site=site("forward.x"), rank=2)
    assert (found.rank, found.step, found.matrix.values.tolist()) == (2, 3, [[2.0, 2.0]])
    assert asked(subject, "variable", site=site("forward.x"), rank=0).step is None
    subject.run.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "None"),
        ("<script>", "'<script>'"),
        ([1, float("nan")], "[1, nan]"),
        ({"q": np.zeros((3, 4), np.float32), "n": 2}, "{'q': <float32 3×4>, 'n': 2}"),
    ],
)
def test_what_is_no_tensor_is_told_as_text(tmp_path, given, text):
    subject = recorded(tmp_path / "run", [value("forward.x", given)])
    found = asked(subject, "variable", site=site("forward.x"))
    assert (found.text, found.shape, found.matrix) == (text, None, None)
    assert found.notes == ("the source of its line was not kept",)
    subject.run.close()


def test_long_texts_are_cut_and_huge_ones_are_not_read(tmp_path):
    values = [value("forward.x", "y" * 5000), value("forward.x", "y" * 1_100_000, 1)]
    subject = recorded(tmp_path / "run", values)
    found = asked(subject, "variable", site=site("forward.x"), step=0)
    assert len(found.text) == variable.MAX_TEXT
    assert found.text.endswith("…")
    found = asked(subject, "variable", site=site("forward.x"))
    assert found.text == ""
    assert "too long to show" in found.notes
    subject.run.close()


def test_a_huge_tensor_is_pooled_to_few_cells_or_said_to_be_too_large(tmp_path, monkeypatch):
    x = np.zeros((1000, 3001), np.float32)
    x[999, 3000], x[500, 1500], x[0, 0] = -7, np.nan, 5
    subject = recorded(tmp_path / "run", [value("forward.x", x)])
    found = asked(subject, "variable", site=site("forward.x"))
    shown = found.matrix
    assert (shown.rows, shown.columns) == (250, 251)
    assert (shown.cell_rows, shown.cell_columns) == (4, 12)
    assert (shown.values[-1, -1], shown.values[0, 0]) == (-7, 5)
    assert np.argwhere(shown.flags == 2).tolist() == [[125, 125]]
    assert (shown.limits.min, shown.limits.max, shown.not_finite) == (-7, 5, 1)
    assert "each cell = 4×12 elements, the one farthest from zero" in found.notes
    assert "1 of 3,001,000 not finite" in found.notes
    _, body = envelope.pack("variable", found)
    assert len(body) < 4 << 20
    for limit, word in (("MAX_BYTES", "12,004,000 bytes"), ("MAX_ELEMENTS", "3,001,000 elements")):
        with monkeypatch.context() as patch:
            patch.setattr(variable, limit, 1000)
            found = asked(subject, "variable", site=site("forward.x"))
        assert (found.matrix, found.shape) == (None, (1000, 3001))
        assert f'too large to draw ({word}): `run.trace("h.0.forward.x")` reads it' in found.notes
    subject.run.close()


def test_a_damaged_file_and_a_missing_one_are_said(tmp_path):
    subject = recorded(tmp_path / "run", [value("forward.x", np.ones((2, 2)))])
    (file,) = (tmp_path / "run" / "tensors").glob("*/*.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x")
    found = asked(subject, "variable", site=site("forward.x"))
    assert found.matrix is None
    assert any("wrong checksum" in note for note in found.notes)
    file.unlink()
    found = asked(subject, "variable", site=site("forward.x"))
    assert any(note.startswith("cannot be read: `tensors/") for note in found.notes)
    assert str(tmp_path) not in " ".join(found.notes)
    subject.run.close()


def test_only_sites_of_the_run_can_be_asked_about_and_only_traced_ones_have_values(tmp_path):
    odd = "forward.<img src=x>../../é"
    subject = recorded(tmp_path / "run", [value(odd, np.ones(3)), value("forward.x", np.ones(0))])
    (ref,) = [
        s.id
        for section in asked(subject, "panel", module="h.0").sections
        for s in section.sites
        if s.slot == odd
    ]
    assert asked(subject, "variable", site=ref).matrix.values.tolist() == [[1, 1, 1]]
    found = asked(subject, "variable", site=site("forward.x"))
    assert "has no elements" in found.notes
    assert found.matrix.values.size == 0
    for strange in ("../x", odd, "h.0/local/forward", "h.0.forward.x", "~0123456789abcdef", ""):
        with pytest.raises(NotFoundError):
            asked(subject, "variable", site=strange)
    found = asked(subject, "variable", site="h.0/output/0")
    assert (found.step, found.next, found.matrix) == (None, None, None)
    assert "sonde.trace" in found.notes[0]
    subject.run.close()


@pytest.mark.parametrize("line", [-1, 0, 40, 48, 1 << 30, None])
def test_a_line_outside_of_the_source_is_not_guessed(tmp_path, line):
    subject = recorded(tmp_path / "run", [source(), value("forward.x", np.ones(2), line=line)])
    found = asked(subject, "variable", site=site("forward.x"))
    assert (found.method, found.lines) == ("", ())
    assert "the source of its line was not kept" in found.notes
    subject.run.close()


def test_calls_of_a_method_that_are_no_calls_of_the_module_are_in_its_panel(tmp_path):
    values = [value("helper.x", np.ones(2), call=call) for call in range(3)]
    subject = recorded(tmp_path / "run", values)
    found = asked(subject, "panel", node="h.0")
    (local,) = [s for s in found.sections if s.kind == "local"]
    assert [s.call for s in local.sites] == [0, 1, 2]
    subject.run.close()


def test_a_variable_that_never_was_a_tensor_is_in_the_panel_and_has_values(tmp_path):
    values = [
        value("forward.mode", "warm", 0),
        value("forward.mode", "cold", 5),
        value("forward.mode", {"a": [1]}, 5, call=1),
        value("forward.x", np.ones(2), 5),
        value("forward.x", None, 6),
        value("forward.n", 3, 5, module="h.1"),
    ]
    sites = [v for v in values if v.slot == "forward.x"]
    subject = recorded(tmp_path / "run", [source(), *values], sites=sites)
    found = asked(subject, "panel", module="h.0")
    (local,) = [s for s in found.sections if s.kind == "local"]
    assert [s.slot for s in local.sites] == ["forward.x"]
    assert [s.label for s in local.plain] == ["forward.mode", "forward.mode #1"]
    for section in found.sections:
        assert section is local or section.plain == ()
    first, second = (s.id for s in local.plain)
    assert [asked(subject, "variable", site=first, step=n).text for n in (0, 4, 5)] == [
        *("'warm'", "'warm'", "'cold'"),
    ]
    assert asked(subject, "variable", site=second).text == "{'a': [1]}"
    assert asked(subject, "variable", site=site("forward.x")).text == "None"
    assert asked(subject, "variable", site=site("forward.x"), step=5).shape == (2,)
    for view in ("kymograph", "section"):
        with pytest.raises(NotFoundError):
            asked(subject, view, site=first)
    for strange in ("h.0/local/forward.nothing", "h.0#2/local/forward.mode", "../forward.mode"):
        with pytest.raises(NotFoundError):
            asked(subject, "variable", site=strange)
    subject.run.close()
