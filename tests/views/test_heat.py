"""Heatmaps: every cell is what numpy says of the values behind it."""

import numpy as np
import pytest
from told import (
    ALL_NAN,
    BLOCKS,
    EMPTY,
    GRADS,
    MODULES,
    OUTPUTS,
    SOME_INF,
    SOME_NAN,
    STEPS,
    asked,
    finite,
    rms,
)

from sonde._errors import SondeError
from sonde.views import specs
from sonde.views.runs.opened_run import NotFoundError

STATS = {
    "rms": rms,
    "mean": lambda x: finite(x).mean() if len(finite(x)) else np.nan,
    "max": lambda x: finite(x).max(initial=-np.inf) if len(finite(x)) else np.nan,
    "max_abs": lambda x: np.abs(finite(x)).max() if len(finite(x)) else np.nan,
    "nonfinite": lambda x: (~np.isfinite(x)).mean() if len(x) else np.nan,
    "count": lambda x: float(len(x)),
}
POOLED = {
    "max_abs": lambda v: v[np.argmax(np.abs(v))],
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "last": lambda v: v[-1],
}


def wanted(told, sites, keys, stride, stat, aggregate="max_abs"):
    """Values and flags by hand: rows of sites, a column per bucket."""
    values = np.full((len(sites), len(keys)), np.nan)
    flags = np.zeros((len(sites), len(keys)), np.uint8)
    for i, site in enumerate(sites):
        for j, key in enumerate(keys):
            inside = [s for s in STEPS if s // stride == key]
            tensors = [told.seen(site.name, s) for s in inside]
            known = np.array([STATS[stat](x) for x in tensors])
            kept = known[~np.isnan(known)]
            if len(kept):
                values[i, j] = POOLED[aggregate](kept)
                flags[i, j] = specs.NUMBER
            if any((~np.isfinite(x)).any() for x in tensors):
                flags[i, j] = specs.NONFINITE
    return values, flags


@pytest.mark.parametrize("stat", STATS)
def test_without_pooling_each_cell_is_the_statistic_of_a_step(told, subject, stat):
    heat = asked(subject, "heat", kind="output", stat=stat)
    assert heat.columns.stride == 1
    assert heat.columns.first.tolist() == STEPS == heat.columns.last.tolist()
    values, flags = wanted(told, OUTPUTS, STEPS, 1, stat)
    np.testing.assert_allclose(heat.values, values, rtol=2e-7)
    np.testing.assert_array_equal(heat.flags, flags)


@pytest.mark.parametrize("aggregate", POOLED)
@pytest.mark.parametrize("columns", [8, 16])
def test_columns_of_several_steps_hold_their_aggregate_and_every_sign_of_trouble(
    told, subject, aggregate, columns
):
    heat = asked(subject, "heat", kind="output", stat="mean", columns=columns, aggregate=aggregate)
    stride = heat.columns.stride
    keys = sorted({s // stride for s in STEPS})
    assert len(keys) <= columns
    assert len({s // (stride // 2) for s in STEPS}) > columns, "the smallest stride that does"
    values, flags = wanted(told, OUTPUTS, keys, stride, "mean", aggregate)
    np.testing.assert_allclose(heat.values, values, rtol=2e-7)
    np.testing.assert_array_equal(heat.flags, flags)
    inside = [[s for s in STEPS if s // stride == key] for key in keys]
    assert heat.columns.first.tolist() == [some[0] for some in inside]
    assert heat.columns.last.tolist() == [some[-1] for some in inside]
    assert heat.columns.steps.tolist() == [len(some) for some in inside]


@pytest.mark.parametrize("columns", [8, 1024])
def test_what_is_not_finite_is_marked_wherever_it_was(subject, columns):
    heat = asked(subject, "heat", kind="output", columns=columns)
    stride = heat.columns.stride
    bad = {
        (i, int(heat.columns.first[j]) // stride)
        for i, j in np.argwhere(heat.flags == specs.NONFINITE)
    }
    names = [site.name for site in OUTPUTS]
    steps = {ALL_NAN: [21], SOME_NAN: [12, 13, 14], SOME_INF: [17]}
    assert bad == {
        (names.index(name), step // stride) for name, some in steps.items() for step in some
    }
    assert f"3 of {len(heat.rows)} rows contain NaN or Inf" in heat.notes


def test_a_cell_of_nothing_but_nan_has_a_flag_and_no_value(subject):
    heat = asked(subject, "heat", kind="output")
    i = [site.name for site in OUTPUTS].index(ALL_NAN)
    j = STEPS.index(21)
    assert np.isnan(heat.values[i, j])
    assert heat.flags[i, j] == specs.NONFINITE


def test_a_tensor_without_values_is_an_empty_cell(subject):
    heat = asked(subject, "heat", kind="output")
    i = [site.name for site in OUTPUTS].index(EMPTY)
    assert heat.flags[i, STEPS.index(5)] == specs.EMPTY


def test_quantiles_are_those_of_the_run(told, subject):
    heat = asked(subject, "heat", kind="param_grad", stat="p90")
    run = subject.run
    for i, site in enumerate(GRADS):
        for j in (0, 17, len(STEPS) - 1):
            known = run.sketch(site.name, step=STEPS[j]).quantiles([0.9])[0]
            assert heat.values[i, j] == np.float32(known)


def test_a_note_says_how_many_steps_were_recorded_between_which(subject):
    told = f"{len(STEPS)} train steps with param_grad, from {STEPS[0]} to {STEPS[-1]}"
    assert told in asked(subject, "heat", kind="param_grad", stat="rms").notes
    assert told in asked(subject, "heat", kind="param_grad", stat="rms", columns=8).notes


def test_quantiles_of_wide_columns_are_those_of_their_last_step(subject):
    heat = asked(subject, "heat", kind="param_grad", stat="median", columns=8)
    assert f"each column = the last of {heat.columns.stride} steps" in heat.notes
    for j, step in enumerate(heat.columns.last.astype(int)):
        known = subject.run.sketch(GRADS[0].name, step=int(step)).quantiles([0.5])[0]
        assert heat.values[0, j] == np.float32(known)


def test_rows_are_in_the_order_of_the_model_and_lead_to_their_site(told, subject):
    heat = asked(subject, "heat", kind="output")
    assert [row.path for row in heat.rows] == list(MODULES)
    assert [row.site for row in heat.rows] == [
        site.name if site.module else "./output/0" for site in OUTPUTS
    ]
    assert [row.node for row in heat.rows] == [path or "." for path in MODULES]
    assert [(g.path, g.start, g.length) for g in heat.groups if g.path.startswith("h.")] == [
        (f"h.{i}", 2 + 3 * i, 3) for i in range(BLOCKS)
    ]
    for i, row in enumerate(heat.rows):
        group = heat.groups[row.group]
        assert group.start <= i < group.start + group.length


def test_under_keeps_a_module_and_what_is_below(subject):
    heat = asked(subject, "heat", kind="output", under="h.1")
    assert [row.path for row in heat.rows] == ["h.1", "h.1.attn", "h.1.mlp"]
    assert [row.path for row in asked(subject, "heat", kind="output", under=".").rows] == list(
        MODULES
    )


def test_folded_rows_hold_the_largest_of_their_members_and_the_worst_flag(told, subject):
    whole = asked(subject, "heat", kind="output")
    heat = asked(subject, "heat", kind="output", fold=True)
    assert [(row.path, row.count) for row in heat.rows] == [
        ("", 1),
        ("embed", 1),
        ("h.0", BLOCKS),
        ("h.0.attn", BLOCKS),
        ("h.0.mlp", BLOCKS),
        ("head", 1),
    ]
    members = [2 + 3 * i + 2 for i in range(BLOCKS)]  # the MLPs
    np.testing.assert_array_equal(heat.values[4], np.nanmax(whole.values[members], axis=0))
    np.testing.assert_array_equal(heat.flags[4], whole.flags[members].max(axis=0))


def test_more_rows_than_fit_become_fewer_and_none_is_lost(told, subject):
    whole = asked(subject, "heat", kind="output")
    heat = asked(subject, "heat", kind="output", rows=2)
    assert len(heat.rows) <= 2
    assert sum(row.count for row in heat.rows) == len(OUTPUTS)
    np.testing.assert_array_equal(np.nanmax(heat.values, 0), np.nanmax(whole.values, 0))
    np.testing.assert_array_equal(heat.flags.max(0), whole.flags.max(0))
    assert any("neighbouring rows" in note for note in heat.notes)


def test_a_window_is_cut_at_both_ends(subject):
    heat = asked(subject, "heat", kind="output", first=10, last=33)
    assert heat.columns.first.tolist() == [s for s in STEPS if 10 <= s <= 33]


def test_a_phase_has_its_own_steps(told, subject):
    heat = asked(subject, "heat", kind="output", phase="eval")
    assert heat.columns.first.tolist() == [s for s in STEPS if s % 10 == 9]
    assert heat.values[0, 0] == pytest.approx(rms(told.seen("./output/0", 9, "eval")), rel=1e-6)


def test_a_metric_is_a_row_per_module(told, subject):
    heat = asked(subject, "heat", metric="norm")
    assert [row.path for row in heat.rows] == ["h.0", "h.1"]
    np.testing.assert_allclose(heat.values[0], np.sin(STEPS), rtol=2e-7, atol=1e-12)
    np.testing.assert_allclose(heat.values[1], -np.array(STEPS, float))
    assert heat.is_signed


def test_limits_are_robust_and_name_the_true_extremes(subject):
    heat = asked(subject, "heat", kind="output", stat="max_abs")
    usable = heat.values[heat.flags == specs.NUMBER].astype(np.float64)
    assert (heat.limits.min, heat.limits.max) == (usable.min(), usable.max())
    assert heat.limits.low == pytest.approx(np.percentile(usable, 1))
    assert heat.limits.high_share == (usable > heat.limits.high).mean()


def test_norms_divide_each_row_by_its_own(subject):
    plain = asked(subject, "heat", kind="output").values.astype(np.float64)
    start = asked(subject, "heat", kind="output", norm="start").values
    base = np.nanmedian(np.abs(plain[:, :16]), axis=1)
    np.testing.assert_allclose(start[0], plain[0] / base[0], rtol=1e-6)
    z = asked(subject, "heat", kind="output", norm="z")
    assert z.is_signed
    np.testing.assert_allclose(
        z.values[0], (plain[0] - plain[0].mean()) / plain[0].std(), rtol=1e-4, atol=1e-5
    )


def test_what_was_not_recorded_is_told_with_the_way_to_record_it(subject):
    with pytest.raises(NotFoundError, match=r"sonde\.watch\(model, log=") as caught:
        asked(subject, "heat", kind="update")
    assert caught.value.code == "not_recorded"
    with pytest.raises(NotFoundError, match="No metric `nothing`"):
        asked(subject, "heat", metric="nothing")
    with pytest.raises(NotFoundError, match="There is no kind"):
        asked(subject, "heat", kind="'; drop table stats; --")
    with pytest.raises(SondeError, match="Unknown statistic"):
        asked(subject, "heat", stat='rms" from stats; --')
