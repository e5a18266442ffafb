"""The raw entries of the C kernel against the reference: addresses in, rows out.

What every kernel must do is in the conformance suite; here is what only this one has.
"""

import ctypes
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.kernels import c, reference
from sonde.kernels.layout import WORDS, new_table, unpack
from sonde.record import COUNTS, EXTREMA, SUMS
from sonde.sketch import Sketch
from sonde.sketch import row as sketch_at

if not c.available():
    pytest.skip("the C kernel is not built", allow_module_level=True)

DTYPES = sorted(c.DTYPES)
FLOATS = ["float32", "float64", "float16", "bfloat16"]
# One below, at and above every width the kernel has: vectors, direct counting, blocks, histograms.
WIDTHS = [0, 4, 8, 16, 32, 192, 1024, 4096, 8192, 16384, 20000]
SIZES = sorted({max(n + d, 0) for n in WIDTHS for d in (-1, 0, 1)})
SPECIALS = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 448.0, 57344.0, 65504.0, 1e-40, -1e-45]
WIDE_SPECIALS = [1e300, -1e300, 1e-300, 3.40282357e38, 3.5e38, -3.5e38, 1e-46, 1e-39]


@pytest.fixture(params=c.paths())
def path(request):
    c.use_path(request.param)
    yield request.param
    c.use_path(c.paths()[0])


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name, None) or name)


def values(name, n, seed):
    """Any bits at all, ordinary numbers and specials, mixed in shares that the seed decides."""
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(name)
    with np.errstate(all="ignore"):
        x = (rng.normal(size=n) * 2.0 ** rng.integers(-3, 12)).astype(dtype)
        specials = SPECIALS + (WIDE_SPECIALS if name == "float64" else [])
        if np.issubdtype(dtype, np.integer) or name == "bool":
            specials = [0, 1, 127]
        some = rng.random(n) < rng.choice([0, 0.01, 0.5])
        x[some] = rng.choice(np.array(specials, np.float64), some.sum()).astype(dtype)
    if name not in ("float64", "bool"):  # float64: sums of any bits overflow in one order only
        some = rng.random(n) < rng.choice([0, 0.01, 1])
        bits = rng.integers(0, 256, (int(some.sum()), dtype.itemsize), np.uint8)
        x[some] = bits.view(dtype)[:, 0]
    return x


@st.composite
def tensors(draw, names=DTYPES, sizes=SIZES):
    name = draw(st.sampled_from(names))
    return name, values(name, draw(st.sampled_from(sizes)), draw(st.integers(0, 2**32)))


def address(array):
    return array.__array_interface__["data"][0]


def new_row():
    return new_table(1)


def read(row) -> Sketch:
    return sketch_at(unpack(row), 0)


def added(name, x, repeat=1, threads=1):
    row = new_row()
    c.add(address(row), address(x), x.size, c.DTYPES[name], repeat, threads)
    return read(row)


def judged(x):
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaN
        return reference.sketch(x)


def assert_same(found, expected):
    """Counts, extrema and bins exactly; sums to float64 rounding.

    n additions in any order are off by at most n * 2**-53 * sum(|terms|), and a term has at most
    four roundings of its own. Both sides may err, hence twice that; and below 2**-1022 a rounding
    is absolute, half of 2**-1074.
    """
    for name in (*COUNTS, *EXTREMA):
        assert getattr(found, name) == getattr(expected, name), name
    np.testing.assert_array_equal(found.bins, expected.bins)
    sizes = (expected.sum_abs, expected.sum_abs, expected.sum_sq, expected.sum_4)
    for name, size in zip(SUMS, sizes, strict=True):
        a, b = getattr(found, name), getattr(expected, name)
        bound = 2 * (expected.count + 4) * (2.0**-53 * size + 2.0**-1074)
        assert a == b or abs(a - b) <= bound, (name, a, b, bound)


def test_codes_of_formats_match_the_bytes_they_take():
    for name in DTYPES:
        x = np.frombuffer(np.arange(64, dtype=np.uint8).tobytes(), numpy_dtype(name))
        assert_same(added(name, x), judged(x))


@settings(deadline=None, max_examples=300)
@given(tensor=tensors())
def test_add_equals_the_reference(tensor):
    assert_same(added(*tensor), judged(tensor[1]))


@pytest.mark.parametrize("name", DTYPES)
def test_every_path_equals_the_reference(path, name):
    for seed, n in enumerate(SIZES):
        x = values(name, n, seed)
        assert_same(added(name, x), judged(x))


@pytest.mark.parametrize("name", [n for n in DTYPES if numpy_dtype(n).itemsize == 2])
def test_every_16_bit_pattern_is_right(path, name):
    x = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(name))
    assert_same(added(name, x), judged(x))
    for part in np.split(x, 512):
        assert_same(added(name, part), judged(part))


@pytest.mark.parametrize("name", [n for n in DTYPES if numpy_dtype(n).itemsize == 1])
def test_every_8_bit_pattern_is_right(path, name):
    bits = np.arange(256, dtype=np.uint8)
    x = (bits != 0) if name == "bool" else bits.view(numpy_dtype(name))
    for many in (1, 40):  # few are converted, many are counted
        row = new_row()
        data = np.tile(bits, many)
        c.add(address(row), address(data), data.size, c.DTYPES[name], 1, 1)
        assert_same(read(row), judged(np.tile(x, many)))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float8_e5m2", "int64"])
def test_threads_change_nothing_but_rounding(name, threads):
    x = values(name, 700_001, threads)
    assert_same(added(name, x, threads=threads), judged(x))
    assert added(name, x, threads=threads) == added(name, x, threads=threads)


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, -np.inf])
def test_a_bin_holds_more_than_16_bits(path, value):
    x = np.full(1_200_003, value, np.float32)
    assert_same(added("float32", x), judged(x))


def test_more_than_2_to_the_31_values_are_counted():
    x = np.zeros(2**31 + 5, np.uint8)
    x[-1] = 3
    found = added("uint8", x, threads=2)
    assert (found.count, found.zeros, found.sum) == (2**31 + 5, 2**31 + 4, 3.0)
    assert found.bins[0] == 2**31 + 4


@settings(deadline=None)
@given(tensor=tensors(sizes=[0, 1, 100, 1025, 9001]), repeat=st.integers(0, 2**40))
def test_repeat_multiplies_exactly(tensor, repeat):
    once, often = added(*tensor), added(*tensor, repeat=repeat)
    for name in COUNTS:
        assert getattr(often, name) == repeat * getattr(once, name)
    np.testing.assert_array_equal(often.bins, repeat * once.bins)
    if repeat:
        assert (often.min, often.max, often.min_abs) == (once.min, once.max, once.min_abs)
        assert often.sum == once.sum * repeat


@settings(deadline=None)
@given(tensor=tensors(sizes=[1, 100, 1025, 9001]), at=st.integers(1, 7))
def test_values_may_lie_at_any_address(tensor, at):
    name, x = tensor
    raw = np.zeros(x.nbytes + 8, np.uint8)
    raw[at : at + x.nbytes] = x.view(np.uint8)
    row = new_row()
    c.add(address(row), address(raw) + at, x.size, c.DTYPES[name], 1, 1)
    assert read(row) == added(name, x)


# -- views ----------------------------------------------------------------------------------------


@st.composite
def views(draw):
    """A view with any sizes and strides, also zero and overlapping, that stays inside its base."""
    sizes = tuple(draw(st.lists(st.integers(0, 9) | st.just(1100), max_size=5)))
    while np.prod([max(s, 1) for s in sizes]) > 40_000:
        sizes = sizes[1:]
    strides = tuple(draw(st.integers(0, 12) | st.just(1)) for _ in sizes)
    if draw(st.booleans()):  # dense, in any order of dimensions
        order = draw(st.permutations(range(len(sizes))))
        dense, step = [0] * len(sizes), 1
        for d in order:
            dense[d] = step
            step *= max(sizes[d], 1)
        strides = tuple(dense)
    reach = sum((s - 1) * t for s, t in zip(sizes, strides, strict=True) if s) + 1
    name = draw(st.sampled_from(DTYPES))
    base = values(name, reach, draw(st.integers(0, 2**32)))
    in_bytes = tuple(t * base.itemsize for t in strides)
    return name, np.ndarray(sizes, base.dtype, base.view(np.uint8), strides=in_bytes)


def added_view(name, x, threads=1):
    row = new_row()
    strides = tuple(t // x.itemsize for t in x.strides)
    c.add_strided(address(row), address(x), c.DTYPES[name], x.shape, strides, 1, threads)
    return read(row)


@settings(deadline=None, max_examples=300)
@given(view=views())
def test_a_view_is_sketched_as_its_values(view):
    name, x = view
    found, expected = added_view(name, x), judged(x)
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "uint8"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_large_view_is_cut_between_threads(name, threads):
    x = values(name, 900 * 1300, threads).reshape(900, 1300)
    for view in (x.T, x[:, 3:1200], x[::2, ::3], x.reshape(9, 100, 1300)[:, 5:90].swapaxes(0, 2)):
        assert_same(added_view(name, view, threads), judged(view))


def test_an_expanded_view_costs_nothing_and_counts_in_full():
    x = np.broadcast_to(np.float32([[1.5], [-2.0]]), (2, 2**40))
    row = new_row()
    c.add_strided(address(row), address(x), c.DTYPES["float32"], x.shape, (1, 0), 1, 1)
    found = read(row)
    assert found.count == 2**41
    assert found.sum == -(2.0**39)
    assert sorted(found.bins[found.bins > 0]) == [2**40, 2**40]


# -- copies and differences -----------------------------------------------------------------------


@settings(deadline=None)
@given(tensor=tensors(), threads=st.sampled_from([1, 2]))
def test_a_copy_has_the_same_bits_and_sketch(tensor, threads):
    name, x = tensor
    row, copy = new_row(), np.full(x.nbytes + 1, 0xA5, np.uint8)
    c.add_copy(address(row), address(x), address(copy), x.size, c.DTYPES[name], threads)
    assert copy[:-1].tobytes() == x.tobytes()
    assert copy[-1] == 0xA5
    assert_same(read(row), judged(x))


def difference(name, new, old):
    wide = name in ("float64", "int32", "uint32", "int64", "uint64")
    with np.errstate(all="ignore"):
        kind = np.float64 if wide else np.float32
        return new.astype(kind) - old.astype(kind)


@settings(deadline=None)
@given(tensor=tensors(), seed=st.integers(0, 2**32))
def test_a_difference_is_sketched_as_its_values(tensor, seed):
    name, new = tensor
    old = values(name, new.size, seed)
    row = new_row()
    c.add_difference(address(row), address(new), address(old), new.size, c.DTYPES[name], 1)
    assert_same(read(row), judged(difference(name, new, old)))


# -- many -----------------------------------------------------------------------------------------


def add_many(rows, tensors_, copies=None, olds=None, threads=1):
    arrays = [
        np.array(rows, np.int64),
        np.array([address(x) for _, x in tensors_], np.int64),
        np.array([x.size for _, x in tensors_], np.int64),
        np.array([c.DTYPES[name] for name, _ in tensors_], np.int64),
    ]
    extra = [None if more is None else np.array(more, np.int64) for more in (copies, olds)]
    more = [0 if array is None else address(array) for array in extra]
    c.add_many(*(address(a) for a in arrays), *more, len(tensors_), threads)


many = st.lists(
    tensors(names=[*FLOATS, "float8_e4m3fn", "int32"], sizes=[0, 1, 100, 5000, 17000, 90_001]),
    max_size=12,
)


@settings(deadline=None)
@given(tensors_=many, threads=st.integers(1, 5), shared=st.booleans())
def test_many_equal_the_sum_of_each(tensors_, threads, shared):
    big = ("float32", values("float32", 200_000, len(tensors_)))  # enough for more than one thread
    tensors_ = [*tensors_, big, *tensors_[:2]]
    table = new_table(len(tensors_))
    rows = [i // 2 if shared else i for i in range(len(tensors_))]
    add_many([address(table[i]) for i in rows], tensors_, threads=threads)
    found = unpack(table)
    for i in range(len(table)):
        own = [judged(x) for (_, x), row in zip(tensors_, rows, strict=True) if row == i]
        assert_same(sketch_at(found, i), Sketch.merged(own))


def test_tensors_that_share_a_row_do_not_race_for_it():
    x = values("float32", 300, 0)
    row, often = new_row(), 50_000
    add_many([address(row)] * often, [("float32", x)] * often, threads=2)
    assert_same(read(row), added("float32", x, repeat=often))


@settings(deadline=None)
@given(tensors_=many, threads=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_many_copy_and_compare_where_asked(tensors_, threads, seed):
    tensors_ = [*tensors_, ("bfloat16", values("bfloat16", 150_000, seed))]
    copies = [np.zeros_like(x) for _, x in tensors_]
    olds = [values(name, x.size, seed + i) for i, (name, x) in enumerate(tensors_)]
    table = new_table(len(tensors_))
    add_many(
        [address(row) for row in table],
        tensors_,
        copies=[address(x) if i % 2 else 0 for i, x in enumerate(copies)],
        olds=[address(x) if i % 3 else 0 for i, x in enumerate(olds)],
        threads=threads,
    )
    for i, (name, x) in enumerate(tensors_):
        expected = difference(name, x, olds[i]) if i % 3 else x
        assert_same(sketch_at(unpack(table), i), judged(expected))
        assert copies[i].tobytes() == (x if i % 2 else np.zeros_like(x)).tobytes()


def test_nothing_to_add_leaves_the_rows_alone():
    row = new_row()
    add_many([], [], threads=2)
    c.add(address(row), 0, 0, 0, 1, 2)
    c.add_strided(address(row), 0, 0, (3, 0), (1, 1), 1, 2)
    np.testing.assert_array_equal(row, new_row())


# -- rows -----------------------------------------------------------------------------------------


def merged(*rows):
    total = new_row()
    for row in rows:
        c.merge(address(total), address(row))
    return total


@settings(deadline=None)
@given(a=tensors(), b=tensors())
def test_merged_rows_equal_the_merged_sketches(a, b):
    table = new_table(2)
    for row, (name, x) in zip(table, (a, b), strict=True):
        c.add(address(row), address(x), x.size, c.DTYPES[name], 1, 1)
    first, second = table[:1], table[1:]
    expected = read(first).merge(read(second))
    assert read(merged(first, second)) == expected
    assert read(merged(second, first)) == expected
    assert read(merged(first)) == read(first)


@settings(deadline=None)
@given(tensors_=st.lists(tensors(), max_size=6), data=st.data())
def test_pack_equals_unpack_and_empties_the_rows(tensors_, data):
    table = new_table(len(tensors_) + 1)
    for row, (name, x) in zip(table, tensors_, strict=False):
        c.add(address(row), address(x), x.size, c.DTYPES[name], 1, 1)
    which = st.lists(st.integers(0, len(table) - 1), max_size=2 * len(table))
    chosen = np.array(data.draw(which), np.int64)  # some of them twice
    rest = np.setdiff1d(np.arange(len(table)), chosen)
    expected, kept = unpack(table[chosen]), table[rest].copy()
    found = c.pack(table, chosen)
    for column in ("counts", "sums", "extrema", "offsets", "bin_ids", "bin_counts"):
        a, b = getattr(found, column), getattr(expected, column)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(table[rest], kept)
    np.testing.assert_array_equal(table[chosen], new_table(len(chosen)))


def test_pack_refuses_what_it_cannot_read():
    table = new_table(3)
    with pytest.raises(ValueError, match="between 0 and 2"):
        c.pack(table, np.array([3]))
    with pytest.raises(ValueError, match="between 0 and 2"):
        c.pack(table, np.array([-1]))
    with pytest.raises(ValueError, match=f"int64 array of {WORDS} columns"):
        c.pack(table[:, ::2], np.array([0]))


@given(a=st.binary(max_size=100), b=st.binary(max_size=100), repeat=st.sampled_from((1, 1000)))
def test_memory_is_the_same_where_its_bytes_are(a, b, repeat):
    first, second = (np.frombuffer(each * repeat + b"!", np.uint8) for each in (a, b))
    n = min(len(first), len(second))
    found = c.same(first.ctypes.data, second.ctypes.data, n)
    assert found is (first[:n].tobytes() == second[:n].tobytes())


def test_wrong_arguments_are_named():
    row = address(new_row())
    with pytest.raises(ValueError, match="`dtype` must be a code"):
        c.add(row, row, 1, len(c.DTYPES), 1, 1)
    with pytest.raises(ValueError, match="must not be negative"):
        c.add(row, row, -1, 0, 1, 1)
    with pytest.raises(TypeError, match="takes 6 arguments, got 2"):
        c.add(row, row)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        c.add_strided(row, row, 0, (2,), (-1,), 1, 1)
    with pytest.raises(TypeError, match="tuples of one length"):
        c.add_strided(row, row, 0, (2,), (1, 1), 1, 1)
    for call in (
        lambda: c.add(row, 0, 1, 0, 1, 1),
        lambda: c.add_strided(row, 0, 0, (2,), (1,), 1, 1),
        lambda: c.same(row, 0, 1),
    ):
        with pytest.raises(ValueError, match="`data` is no address"):
            call()
    with pytest.raises(ValueError, match="one of `paths"):
        c.use_path("quantum")
    with pytest.raises(TypeError, match="takes 1 to 5 arguments, got 6"):
        c.call(row, 1, 2, 3, 4, 5)


def test_a_function_at_an_address_is_called_with_all_its_words():
    taken = []
    entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)(lambda *a: taken.append(a) or -7)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert c.call(address, 1 << 40, -2, 3, 4) == -7
    assert c.call(address) == -7
    assert taken == [(1 << 40, -2, 3, 4), (0, 0, 0, 0)]


# -- surroundings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_flushing_of_subnormals_changes_nothing(name):
    torch = pytest.importorskip("torch")
    x = (values("float32", 300_000, 7).view(np.uint32) >> 9).view(np.float32)
    x = x.astype(numpy_dtype(name)) if name != "float64" else x.astype(np.float64) * 1e-8
    small = (np.random.default_rng(0).normal(size=300_000) * 1e-40).astype(np.float32)
    expected = [judged(x), judged(small), added(name, x), added("float32", small)]
    assert torch.set_flush_denormal(True)
    try:
        found = [added(name, x, threads=t) for t in (1, 2)]
        found_small = [added("float32", small, threads=t) for t in (1, 2)]
        assert torch.tensor(1e-40, dtype=torch.float32).mul(1.0).item() == 0.0  # still the caller's
    finally:
        torch.set_flush_denormal(False)
    for sketch in found:
        assert_same(sketch, expected[0])
    for sketch in found_small:
        assert_same(sketch, expected[1])
    assert (found[0], found_small[0]) == (expected[2], expected[3])


def test_python_threads_may_fill_different_rows_at_once():
    xs = [values("float32", 300_000 + i, i) for i in range(8)]
    table = new_table(8)

    def fill(i):
        for _ in range(5):
            c.add(address(table[i]), address(xs[i]), xs[i].size, c.DTYPES["float32"], 1, 2)

    threads = [threading.Thread(target=fill, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        assert_same(sketch_at(unpack(table), i), Sketch.merged([judged(x)] * 5))


IN_ANOTHER_PROCESS = """
import os, signal, sys
{imports}
import numpy as np
from sonde.kernels import c
from sonde.kernels.layout import new_table

x = np.random.default_rng(0).normal(size=2_000_000).astype(np.float32)
def sketch(threads):
    table = new_table(1)
    c.add(table.ctypes.data, x.ctypes.data, x.size, c.DTYPES["float32"], 1, threads)
    return table
once, twice = sketch(1), sketch(2)
assert c.thread_runtime() == {runtime!r}, c.thread_runtime()
assert (once[:, :6] == twice[:, :6]).all() and (once[:, 10:] == twice[:, 10:]).all()
{then}
"""

AFTER_FORK = """
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        again = sketch(2)
        os._exit(0 if (again == twice).all() and c.thread_runtime() == "pthreads" else 1)
    finally:
        os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run_python(text):
    subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True, timeout=120)


def test_threads_come_from_the_runtime_that_torch_brings():
    pytest.importorskip("torch")
    run_python(IN_ANOTHER_PROCESS.format(imports="import torch", runtime="openmp", then=""))


def test_without_torch_threads_are_started():
    run_python(IN_ANOTHER_PROCESS.format(imports="", runtime="pthreads", then=""))


def test_a_forked_child_counts_on():
    pytest.importorskip("torch")
    run_python(IN_ANOTHER_PROCESS.format(imports="import torch", runtime="openmp", then=AFTER_FORK))
