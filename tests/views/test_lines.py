"""Lines: numbers over time, none of their extremes lost."""

import numpy as np
import pytest
from told import STEPS, asked

from sonde.views import specs
from sonde.views.runs.opened_run import NotFoundError


def series(told, name, phase="train", module=None):
    """Steps and values of one series, as they were logged."""
    found = {
        step: value
        for (n, m, p, step), value in told.numbers.items()
        if (n, m, p) == (name, module, phase)
    }
    return np.array(list(found)), np.array(list(found.values()))


def cut(lines, i):
    line = lines.lines[i]
    at = slice(line.start, line.start + line.length)
    return {c: getattr(lines, c)[at] for c in ("first", "until", "low", "high", "mean", "last")} | {
        "flags": lines.flags[at],
        "count": lines.count[at],
    }


def test_every_number_comes_back_when_there_is_room(told, subject):
    lines = asked(subject, "lines", name=["loss", "lr"])
    assert [(line.name, line.phase) for line in lines.lines] == [
        ("loss", "train"),
        ("loss", "eval"),
        ("lr", "train"),
    ]
    for i, line in enumerate(lines.lines):
        steps, values = series(told, line.name, line.phase)
        found = cut(lines, i)
        np.testing.assert_array_equal(found["first"], steps)
        np.testing.assert_array_equal(found["last"], values)
        bad = ~np.isfinite(values)
        np.testing.assert_array_equal(found["flags"] == specs.NONFINITE, bad)
        for column in ("low", "high", "mean"):
            np.testing.assert_array_equal(found[column], np.where(bad, np.nan, values))
        assert line.last_step == steps[-1]
        assert line.last == values[-1]


def test_buckets_keep_the_lowest_the_highest_and_what_is_not_finite(told, subject):
    lines = asked(subject, "lines", name=["loss"], phase="train", columns=8)
    steps, values = series(told, "loss")
    found = cut(lines, 0)
    assert lines.stride > 1
    for i, key in enumerate(sorted(set(steps // lines.stride))):
        inside = values[steps // lines.stride == key]
        known = inside[np.isfinite(inside)]
        assert found["low"][i] == known.min()
        assert found["high"][i] == known.max()
        assert found["mean"][i] == pytest.approx(known.mean())
        assert found["count"][i] == len(inside)
        assert (found["flags"][i] == specs.NONFINITE) == (len(known) < len(inside))
        np.testing.assert_equal(found["last"][i], inside[-1])


def test_without_names_all_scalars_are_told_and_no_metric(subject):
    names = [line.name for line in asked(subject, "lines", phase="train").lines]
    assert sorted(names) == ["loss", "lr"]


def test_metrics_are_lines_of_modules(told, subject):
    lines = asked(subject, "lines", name="norm", module=["h.1"])
    assert [(line.module, line.label) for line in lines.lines] == [("h.1", "h.1 · norm")]
    np.testing.assert_array_equal(lines.last, -np.array(STEPS, float))
    every = asked(subject, "lines", name="norm", module="*")
    assert [line.module for line in every.lines] == ["h.0", "h.1"]


def test_a_spark_is_the_mean_of_each_bucket_of_the_loss(told, subject):
    spark = asked(subject, "spark", columns=8)
    lines = asked(subject, "lines", name="loss", phase="train", columns=8)
    assert (spark.name, spark.phase) == ("loss", "train")
    assert len(spark.x) == len(lines.mean) <= 8
    np.testing.assert_allclose(spark.y, lines.mean, rtol=1e-12)
    np.testing.assert_array_equal(spark.flags, lines.flags)


def test_a_name_that_was_not_logged_is_told(subject):
    with pytest.raises(NotFoundError, match="No scalar `nothing`"):
        asked(subject, "spark", name="nothing")
    assert asked(subject, "lines", name="nothing").lines == ()
