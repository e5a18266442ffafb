"""Number formats and what would be lost in them, against `ml_dtypes`."""

import inspect
import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde import SondeError
from sonde.kernels.reference import sketch
from sonde.sketch import FORMATS

NAMES = sorted(FORMATS)
SIGNED = [n for n in NAMES if n != "float8_e8m0fnu"]  # that one has neither zero nor sign


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def test_every_float_format_of_ml_dtypes_is_known():
    theirs = {
        name
        for name, value in vars(ml_dtypes).items()
        if inspect.isclass(value) and name.startswith(("float", "bfloat"))
    }
    assert theirs | {"float16", "float32"} == set(FORMATS)


@pytest.mark.parametrize("name", NAMES)
def test_limits_are_those_of_ml_dtypes(name):
    limits = ml_dtypes.finfo(dtype_of(name))
    assert FORMATS[name].largest == float(limits.max)
    assert FORMATS[name].smallest_normal == float(limits.smallest_normal)
    assert FORMATS[name].smallest == float(limits.smallest_subnormal)


@st.composite
def cast_samples(draw):
    """Values around all limits of a format, some of them exactly at one."""
    name = draw(st.sampled_from(SIGNED))
    form = FORMATS[name]
    low, high = math.log2(form.smallest) - 4, min(math.log2(form.largest) + 4, 127)
    exponents = draw(st.lists(st.floats(low, high), max_size=40))
    limits = (form.largest, form.smallest, form.smallest / 2, form.smallest_normal)
    at = draw(st.lists(st.sampled_from(limits), max_size=5))
    signs = draw(st.sampled_from([1.0, -1.0]))
    x = np.array([2.0**e for e in exponents] + at + [0.0, 1.0], np.float32) * np.float32(signs)
    return name, x[(x == 0) | (np.abs(x) >= 2.0**-126)]


@given(cast_samples(), st.integers(-8, 8))
def test_loss_equals_casting_but_for_the_documented_edges(sample, power):
    name, x = sample
    form, scale = FORMATS[name], 2.0**power
    y = np.abs(x[x != 0].astype(np.float64)) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        cast = y.astype(np.float32).astype(dtype_of(name)).astype(np.float64)
    found = sketch(x).loss(name, scale)

    # An underflow is a cast to zero; the tie at half the smallest is not counted.
    tie = (y == form.smallest / 2).sum()
    zero = (cast == 0).sum()
    assert zero - tie <= round(found.underflow * len(y)) <= zero
    assert (
        round(found.subnormal * len(y))
        == ((y >= form.smallest / 2) & (y < form.smallest_normal)).sum()
    )

    # An overflow is a cast to what is not finite (or to the largest, where a format saturates).
    # Bins decide it but for values within their width of the limit.
    over = (y > form.largest) & ~(np.isfinite(cast) & (cast < form.largest))
    edge = (y >= form.largest / 1.25) & (y < form.largest * 1.25)
    assert abs(round(found.overflow * len(y)) - over.sum()) <= edge.sum()


def test_float32_loses_nothing_of_float32():
    tiny = np.array([1e-45, 1e-40, 3.4e38, 1.0], np.float32)
    loss = sketch(tiny).loss("float32")
    assert (loss.underflow, loss.overflow) == (0, 0)
    assert loss.subnormal == 0.5


def test_the_largest_value_itself_is_no_overflow():
    assert sketch([448.0, -448.0]).loss("e4m3").overflow == 0
    assert sketch([448.0, 480.0]).loss("e4m3").overflow == 1  # one exceeds: the whole bin counts
    assert sketch([65504.0]).loss("fp16").overflow == 0
    assert sketch([65536.0, 65504.0]).loss("fp16").overflow == 0.5


def test_a_scale_moves_values_into_range():
    x = np.float32([1e-6, 2e-6, 4e-6])
    assert sketch(x).loss("e4m3").underflow == 1
    assert sketch(x).loss("e4m3", scale=2.0**20).underflow == 0


def test_zeros_and_nonfinite_values_lose_nothing():
    loss = sketch([0.0, math.nan, math.inf]).loss("bf16")
    assert math.isnan(loss.underflow)
    assert sketch([0.0, 0.0, 1e-9]).loss("e5m2").underflow == 1


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, math.nan])
def test_a_scale_that_is_no_power_of_two_is_refused(scale):
    with pytest.raises(SondeError, match="power of two"):
        sketch([1.0]).loss("e4m3", scale)


def test_an_unknown_format_is_named_in_the_error():
    with pytest.raises(SondeError, match=r"Unknown number format `int4`.*bfloat16"):
        sketch([1.0]).loss("int4")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        *((a, "float8_e5m2") for a in ("fp8_e5m2", "float8_e5m2", "e5m2", "f8e5m2", "FP8_E5M2")),
        *((a, "float8_e4m3fn") for a in ("fp8_e4m3", "fp8_e4m3fn", "e4m3", "e4m3fn", "f8e4m3fn")),
        *((a, "float8_e4m3fnuz") for a in ("fp8_e4m3fnuz", "e4m3fnuz")),
        *((a, "bfloat16") for a in ("bf16", "bfloat16", "BFloat16", "torch.bfloat16")),
        *((a, "float16") for a in ("fp16", "half", "f16", "torch.half", np.float16)),
        *((a, "float16") for a in (np.dtype("float16"), torch.float16)),
        *((a, "float32") for a in ("fp32", "f32", "single", "float", torch.float32)),
        (torch.float8_e5m2, "float8_e5m2"),
        (torch.float8_e4m3fnuz, "float8_e4m3fnuz"),
        (ml_dtypes.float8_e3m4, "float8_e3m4"),
        *((a, "float4_e2m1fn") for a in ("fp4", "e2m1", "fp4_e2m1", "mxfp4", "nvfp4")),
        *((a, "float6_e3m2fn") for a in ("fp6_e3m2", "e3m2")),
        *((a, "float8_e8m0fnu") for a in ("e8m0", "fp8_e8m0", torch.float8_e8m0fnu)),
    ],
)
def test_the_usual_names_of_a_format_are_taken(alias, name):
    x = sketch(np.array([1e-9, 1e-3, 1.0, 1e6], np.float32))
    assert x.loss(alias) == x.loss(name)


@pytest.mark.parametrize("name", ["fp8", "int4", "", "e9m9", 8, None])
def test_an_unknown_format_lists_the_names_that_are_taken(name):
    with pytest.raises(SondeError, match=r"number format.*bfloat16.*float8_e4m3fn.*e5m2"):
        sketch(np.ones(3, np.float32)).loss(name)


MILLION = {
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float4_e2m1fn": "float4_e2m1fn",
}


@pytest.mark.parametrize("name", MILLION)
def test_fractions_equal_those_of_a_million_casts(name):
    """Log-uniform magnitudes around the format's range: underflow to the value, the rest within the
    bin that holds the largest value."""
    form, rng = FORMATS[name], np.random.default_rng(7)
    low, high = math.log2(form.smallest) - 6, min(math.log2(form.largest) + 6, 127.9)
    low = max(low, -126)
    x = np.exp2(rng.uniform(low, high, 1_000_000)).astype(np.float32)
    x *= rng.choice(np.array([-1, 1], np.float32), len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype(dtype_of(name)).astype(np.float64)
    size = np.abs(x.astype(np.float64))
    found = sketch(x).loss(name)
    assert found.underflow == np.mean(cast == 0)
    is_subnormal = (cast != 0) & (size < form.smallest_normal)
    assert found.subnormal == np.mean(is_subnormal)
    beyond = size > form.largest
    in_last_bin = (size >= form.largest) & (size < form.largest * 1.25)
    assert abs(found.overflow - beyond.mean()) <= in_last_bin.mean()
