"""One suite for all kernels: whatever adds sketches of tensors must pass it, through `kernel`.

A kernel is a function from tensors to the sketch of all of them: it adds each to the same row. To
add a backend, add a line to `KERNELS`.
"""

import math
import struct
import warnings
from collections.abc import Callable

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sonde.capture.torch.rows.host import HostTable, PlainTable, table_for
from sonde.kernels import c, layout, reference
from sonde.kernels import jax as jax_kernels
from sonde.kernels.torch import DTYPES, Unsupported
from sonde.record import COUNTS, EXTREMA, SUMS
from sonde.sketch import Sketch, row

Kernel = Callable[..., Sketch]


def table(make) -> Kernel:
    """A kernel that fills a row of a table."""

    def kernel(*tensors: Tensor) -> Sketch:
        rows = make()
        rows.ensure(8)
        for x in tensors:
            rows.add(5, x)
        return row(rows.take().sketches(np.array([5])), 0)

    return kernel


def judge(*tensors: Tensor) -> Sketch:
    """The definition, on values that torch widens to float64."""
    return Sketch.merged(reference.sketch(to_numpy(x)) for x in tensors)


def on(device: str, make=table_for) -> Kernel:
    """The table of a device, for tensors that are sent there."""
    kernel = table(lambda: make(torch.device(device)))

    def moved(x: Tensor) -> Tensor:
        """There, if it is of a kind that there is there; else it must be refused as it is."""
        try:
            return x.to(device)
        except (NotImplementedError, RuntimeError, TypeError):
            return x

    def there(*tensors: Tensor) -> Sketch:
        return kernel(*(moved(x) for x in tensors))

    there.device = device
    return there


def under_jit(name: str, platform: str = "cpu", pieces: tuple[int, ...] = ()) -> Kernel:
    """A kernel of JAX's inside `jit`. It is compiled for every shape: `pieces` are the only ones
    that are used, where that takes long."""

    @jax.jit
    def rows_of(*arrays):
        return jax_kernels.sketch(*arrays, kernel=name)

    def split(x: np.ndarray) -> list[np.ndarray]:
        found = [] if pieces else [x]
        for size in pieces:
            whole = len(x) // size * size
            found += np.split(x[:whole], whole // size) if whole else []
            x = x[whole:]
        return found

    def kernel(*tensors: Tensor) -> Sketch:
        device = jax.devices(platform)[0]
        found = []
        with jax.enable_x64(True):
            for x in tensors:
                for piece in split(bits_of(x)):
                    rows = rows_of(jax.device_put(piece, device))
                    found.append(row(layout.unpack(jax_kernels.table_of(rows)), 0))
        return Sketch.merged(found)

    return kernel


def bits_of(x: Tensor) -> np.ndarray:
    """The same bits as a flat array of numpy's, of a format that JAX knows."""
    raw = x.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    raw = raw.view(torch.uint8).numpy() if len(raw) else np.empty(0, np.uint8)
    return raw.view(numpy_dtype(str(x.dtype).removeprefix("torch.")))


def has_jax_on(platform: str) -> bool:
    try:
        return bool(jax.devices(platform))
    except RuntimeError:
        return False


needs_jax_on_cuda = pytest.mark.skipif(not has_jax_on("cuda"), reason="JAX has no CUDA device")
needs_c = pytest.mark.skipif(not c.available(), reason="the C kernel is not built")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

TORCH_KERNELS = [
    pytest.param(table(lambda: PlainTable(torch.device("cpu"))), id="torch"),
    pytest.param(table(HostTable), id="c", marks=needs_c),
    pytest.param(on("cuda"), id="cuda", marks=[pytest.mark.gpu, needs_cuda]),
    pytest.param(on("cuda", PlainTable), id="torch-on-cuda", marks=[pytest.mark.gpu, needs_cuda]),
]
"""Kernels that take any tensor of torch."""

JAX_KERNELS = [
    pytest.param(under_jit("c"), id="jax", marks=needs_c),
    pytest.param(under_jit("xla", pieces=(4096, 64, 1)), id="jax-xla"),
    pytest.param(
        under_jit("cuda", "cuda"), id="jax-cuda", marks=[pytest.mark.gpu, needs_jax_on_cuda]
    ),
]
"""Kernels that take arrays of JAX, of the formats that torch has too."""

KERNELS = [pytest.param(judge, id="reference"), *TORCH_KERNELS, *JAX_KERNELS]
"""Kernels that take plain numbers."""


@pytest.fixture(params=KERNELS, scope="module")
def kernel(request) -> Kernel:
    return request.param


@pytest.fixture(params=TORCH_KERNELS, scope="module")
def torch_kernel(request) -> Kernel:
    return request.param


# -- tensors -----------------------------------------------------------------------------------

NAMES = tuple(DTYPES.values())
FLOATS = [n for n in DTYPES.values() if "float" in n]
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 448.0, 57344.0, 65504.0, 1e-40]
WIDE = [1e300, -1e300, 1e-300, 3.4028235e38, 3.40282357e38, 3.5e38, 1e-46, 5e-324]
# One below, at and above the widths of vectors and blocks; enough for several threads.
WIDTHS = (1, 8, 16, 32, 256, 4096, 16384)
SIZES = [0, *sorted({n + d for n in WIDTHS for d in (-1, 0, 1)} - {0}), 70_001]


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def to_numpy(x: Tensor) -> np.ndarray:
    """The values, through torch's own conversion."""
    return x.detach().resolve_conj().resolve_neg().to(torch.float64).numpy()


def to_torch(array: np.ndarray, name: str) -> Tensor:
    """The same bits, without any conversion."""
    raw = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
    return raw.view(getattr(torch, name)).reshape(array.shape)


def values(name: str, n: int, seed: int) -> np.ndarray:
    """Ordinary numbers, specials and any bits at all, in shares that the seed decides."""
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(name)
    with np.errstate(all="ignore"):
        x = (rng.normal(size=n) * 2.0 ** rng.integers(-3, 12)).astype(dtype)
        special = [0, 1, 127] if name not in FLOATS else SPECIAL + WIDE * (name == "float64")
        some = rng.random(n) < rng.choice([0, 0.01, 0.5])
        x[some] = rng.choice(np.array(special, np.float64), some.sum()).astype(dtype)
    if name not in ("float64", "bool"):  # float64: sums of any bits overflow in one order only
        some = rng.random(n) < rng.choice([0, 0.01, 1])
        x[some] = rng.integers(0, 256, (int(some.sum()), dtype.itemsize), np.uint8).view(dtype)[
            :, 0
        ]
    return x


@st.composite
def tensors(draw, names=NAMES, sizes=tuple(SIZES)):
    name = draw(st.sampled_from(names))
    return name, values(name, draw(st.sampled_from(sizes)), draw(st.integers(0, 2**32)))


def expected_of(x: np.ndarray) -> Sketch:
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaN
        return reference.sketch(x)


def assert_same(found: Sketch, expected: Sketch) -> None:
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


# -- the definition ----------------------------------------------------------------------------


@given(tensors(names=("float32",), sizes=(0, 1, 7, 100)))
def test_the_definition_is_what_it_says(tensor):
    """The reference itself, against the words of the design and exact sums."""
    x = [float(v) for v in tensor[1]]
    found = expected_of(tensor[1])
    finite = [v for v in x if math.isfinite(v)]
    bits = [struct.unpack("<I", struct.pack("<f", v))[0] for v in x]
    assert found.count == len(x)
    assert found.zeros == sum(v == 0 for v in x)
    assert found.nans == sum(math.isnan(v) for v in x)
    assert (found.pos_infs, found.neg_infs) == (x.count(math.inf), x.count(-math.inf))
    assert found.subnormals == sum(0 < abs(v) < 2.0**-126 for v in x)
    assert found.min == min(finite, default=math.inf)
    assert found.max == max(finite, default=-math.inf)
    assert found.min_abs == min((abs(v) for v in finite if v), default=math.inf)
    for i in range(2048):
        here = sum(b >> 21 == i for b, v in zip(bits, x, strict=True) if not math.isnan(v))
        assert found.bins[i] == here
    sizes = (found.sum_abs, found.sum_abs, found.sum_sq, found.sum_4)
    powers = ([*finite], [abs(v) for v in finite], [v**2 for v in finite], [v**4 for v in finite])
    for name, terms, size in zip(SUMS, powers, sizes, strict=True):
        bound = (len(x) + 4) * (2.0**-53 * size + 2.0**-1074)
        assert abs(getattr(found, name) - math.fsum(terms)) <= bound, name


# -- numbers -----------------------------------------------------------------------------------


@settings(max_examples=150)
@given(tensor=tensors())
def test_a_sketch_is_that_of_the_definition(kernel, tensor):
    name, x = tensor
    assert_same(kernel(to_torch(x, name)), expected_of(x))


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_read_bit_for_bit(kernel, name):
    size = numpy_dtype(name).itemsize
    if size > 2:
        x = values(name, 5000, 7)
    elif name == "bool":
        x = np.arange(256) % 3 == 0
    else:
        x = np.arange(256**size, dtype=f"u{size}").view(numpy_dtype(name))
    assert_same(kernel(to_torch(x, name)), expected_of(x))


@pytest.mark.parametrize("name", FLOATS)
def test_nothing_but_nan_and_infinity_leaves_the_rest_undefined(kernel, name):
    with np.errstate(invalid="ignore"):
        x = np.array([math.nan, math.inf, -math.inf] * 11).astype(numpy_dtype(name))
    found = kernel(to_torch(x, name))
    assert found.finite == 0
    assert (found.min, found.max, found.min_abs) == (math.inf, -math.inf, math.inf)
    assert (found.sum, found.sum_abs, found.sum_sq, found.sum_4) == (0, 0, 0, 0)
    assert_same(found, expected_of(x))


def test_one_nan_among_many_is_counted(kernel):
    x = torch.ones(300_000)
    x[123_457] = math.nan
    found = kernel(x)
    assert (found.count, found.nans, found.sum) == (300_000, 1, 299_999)


def test_large_integers_are_rounded_to_float64_as_numpy_does(kernel):
    x = np.array([2**63 - 1, -(2**63), 2**53 + 1, 2**62 + 1, 0], np.int64)
    assert_same(kernel(torch.from_numpy(x)), expected_of(x))
    u = np.array([2**64 - 1, 2**63, 0], np.uint64)
    assert_same(kernel(to_torch(u, "uint64")), expected_of(u))


def test_sums_keep_what_float32_would_lose(kernel):
    x = torch.cat([torch.full((1,), 2.0**24), torch.ones(1000)])
    assert kernel(x).sum == 2**24 + 1000


def test_a_cancelling_sum_is_right_to_rounding(kernel):
    x = torch.tensor([1e30, 1.0, -1e30] * 1000, dtype=torch.float64)
    assert_same(kernel(x), expected_of(x.numpy()))


# -- merging -----------------------------------------------------------------------------------


@settings(max_examples=50)
@given(parts=st.lists(tensors(sizes=(0, 1, 33, 5000)), max_size=4))
def test_adding_again_is_merging(kernel, parts):
    found = kernel(*(to_torch(x, name) for name, x in parts))
    expected = Sketch.merged(expected_of(x) for _, x in parts)
    assert_same(found, expected)


def test_nothing_added_is_the_empty_sketch(kernel):
    assert kernel() == Sketch.empty()


# -- shapes ------------------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda x: x.reshape(60, 70).T,
    "permuted": lambda x: x.reshape(6, 10, 7, 10).permute(2, 0, 3, 1),
    "channels_last": lambda x: x.reshape(2, 3, 20, 35).to(memory_format=torch.channels_last),
    "columns": lambda x: x.reshape(60, 70)[:, 3:17],
    "rows": lambda x: x.reshape(60, 70)[5:41],
    "every_third": lambda x: x[::3],
    "strided_twice": lambda x: x.reshape(60, 70)[::2, ::3],
    "expanded": lambda x: x[:50].reshape(50, 1).expand(50, 40),
    "expanded_twice": lambda x: x[:7].reshape(1, 7, 1).expand(3, 7, 5),
    "expanded_slice": lambda x: x.reshape(60, 70)[::2, :1].expand(30, 9),
    "overlapping": lambda x: x.as_strided((100, 30), (11, 1)),
    "unfolded": lambda x: x.unfold(0, 8, 3),
    "diagonal": lambda x: x.reshape(60, 70).diagonal(),
    "scalar": lambda x: x[17],
    "empty": lambda x: x[:0].reshape(0, 5),
    "empty_expanded": lambda x: x[:1].expand(0),
    "many_dimensions": lambda x: x[:4096].reshape([2] * 12).permute(*range(11, -1, -1)),
    "narrow_in_the_middle": lambda x: x.reshape(6, 10, 70)[:, 2:9, :].transpose(0, 1),
    "offset": lambda x: x[1:],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int8"])
def test_a_view_is_read_as_what_it_shows(kernel, view, name):
    x = VIEWS[view](to_torch(values(name, 4200, 3), name))
    assert_same(kernel(x), expected_of(to_numpy(x.to(torch.float64))))


@settings(max_examples=40)
@given(st.data())
def test_any_slice_and_order_of_dimensions_is_read(kernel, data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    x = torch.from_numpy(values("float32", math.prod(shape), 5)).reshape(shape)
    for dim, size in enumerate(shape):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        step = data.draw(st.integers(1, 3))
        x = x[(slice(None),) * dim + (slice(start, stop, step),)]
    x = x.permute(data.draw(st.permutations(range(x.dim()))))
    assume(x.numel() > 0)
    assert_same(kernel(x), judge(x))


def test_a_parameter_and_a_tensor_with_a_graph_are_only_read(kernel):
    p = torch.nn.Parameter(torch.arange(6.0))
    y = p * 2
    version = y._version
    assert_same(kernel(p), judge(p))
    assert_same(kernel(y), judge(y))
    assert y._version == version
    y.sum().backward()
    assert p.grad.tolist() == [2.0] * 6


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_make_no_difference(kernel, mode):
    with mode():
        assert_same(kernel(torch.arange(10.0)), expected_of(np.arange(10.0)))


def test_autocast_and_default_dtype_make_no_difference(kernel):
    x = torch.linspace(-1, 1, 999)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = kernel(x)
    finally:
        torch.set_default_dtype(before)
    assert_same(found, judge(x))


def test_no_random_number_is_drawn(kernel):
    before = torch.get_rng_state()
    kernel(torch.ones(1000))
    assert torch.equal(before, torch.get_rng_state())


# -- tensors that are not plain: right, or refused with a reason -------------------------------


def refused(kernel, x) -> str:
    with pytest.raises(Unsupported) as reason:
        kernel(x)
    return str(reason.value)


def test_negated_views_keep_their_sign(torch_kernel):
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    assert_same(torch_kernel(x), expected_of(np.array([-2.0, 4.0])))
    assert_same(torch_kernel(x[:1]), expected_of(np.array([-2.0])))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_complex_values_count_by_their_modulus(torch_kernel, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: complex32 is experimental
        x = torch.tensor([3 + 4j, 0j, -5 + 12j], dtype=dtype)
        found = torch_kernel(x)
        conjugate = torch_kernel(x.conj())
    assert_same(found, expected_of(np.array([5.0, 0.0, 13.0])))
    assert_same(conjugate, found)


def test_a_modulus_that_float32_does_not_hold_is_not_infinite(torch_kernel):
    """Each part fits; together they do not. The definition is that of complex128."""
    exact = np.array([21 + 28j, -28 + 21j]) * 2.0**123  # of modulus 35 * 2**123
    large = np.array([*exact, (3 + 4j) * 2.0**-140, 3 + 4j, 0], np.complex64)
    x = torch.from_numpy(large)
    assert torch.isinf(x.abs()).sum() == 2, "what torch makes of it by itself"
    found = torch_kernel(x)
    assert_same(found, expected_of(np.abs(large.astype(np.complex128))))
    assert found.pos_infs == 0
    assert found.max == 35 * 2.0**123
    odd = np.array([complex(np.inf, 1), complex(1, -np.inf), complex(np.nan, 1)], np.complex64)
    found = torch_kernel(torch.from_numpy(odd))
    assert (found.pos_infs, found.nans) == (2, 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_tensors_count_their_implicit_zeros(torch_kernel):
    dense = torch.zeros(4, 5)
    dense[1, 2], dense[3, 0] = 2.5, -1.0
    for x in (
        dense.to_sparse(),
        dense.to_sparse(1),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        torch.zeros(4, 5).to_sparse(),
    ):
        assert_same(torch_kernel(x), judge(x.to_dense()))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_blocks_count_their_implicit_zeros(torch_kernel):
    dense = torch.zeros(4, 6)
    dense[0, 0], dense[3, 5] = 1.0, -2.0
    assert_same(torch_kernel(dense.to_sparse_bsr((2, 3))), judge(dense))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_entries_of_an_uncoalesced_tensor_are_added_first(torch_kernel):
    x = torch.sparse_coo_tensor([[1, 1, 2]], [1.0, 2.0, -3.0], (5,))
    assert_same(torch_kernel(x), expected_of(np.array([0.0, 3.0, -3.0, 0.0, 0.0])))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_tensors_count_by_what_they_stand_for(torch_kernel):
    x = torch.quantize_per_tensor(torch.tensor([-0.5, 0.0, 1.0]), 0.25, 2, torch.qint8)
    assert_same(torch_kernel(x), expected_of(np.array([-0.5, 0.0, 1.0])))
    y = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([0, 0]), 0, torch.quint8
    )
    assert_same(torch_kernel(y), expected_of(np.ones(6)))


def test_tensors_that_stand_for_zeros_and_have_no_memory_count_as_zeros(torch_kernel):
    device = getattr(torch_kernel, "device", "cpu")
    nothing = torch._efficientzerotensor((2, 3), device=device)
    assert nothing.data_ptr() == 0
    assert_same(torch_kernel(nothing), expected_of(np.zeros(6)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_count_what_they_hold(torch_kernel, layout):
    parts = [torch.arange(6.0).reshape(2, 3), -torch.arange(12.0).reshape(4, 3)]
    x = torch.nested.nested_tensor(parts, layout=layout)
    expected = expected_of(np.concatenate([p.numpy().ravel() for p in parts]))
    assert_same(torch_kernel(x), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_tensors_with_holes_are_refused(torch_kernel):
    device = getattr(torch_kernel, "device", "cpu")
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).to(device)
    assert "nested" in refused(torch_kernel, x.transpose(1, 2))
    starts, lengths = torch.tensor([0, 1], device=device), torch.tensor([2, 3], device=device)
    there = torch.ones(2, 5, device=device)
    y = torch.nested.narrow(there, 1, starts, lengths, layout=torch.jagged)
    assert "nested" in refused(torch_kernel, y)


def test_meta_tensors_are_refused(torch_kernel):
    assert refused(torch_kernel, torch.empty(3, device="meta")) == "meta tensor: it has no values"


def test_fake_tensors_are_refused(torch_kernel):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    assert refused(torch_kernel, fake) == "tensor subclass FakeTensor"


def test_subclasses_that_only_add_behaviour_are_read(torch_kernel):
    class Named(Tensor):
        pass

    x = torch.arange(5.0).as_subclass(Named)
    assert_same(torch_kernel(x), expected_of(np.arange(5.0)))
    assert_same(torch_kernel(torch.nn.Buffer(torch.arange(5.0))), expected_of(np.arange(5.0)))


def test_subclasses_that_hold_other_tensors_are_refused(torch_kernel):
    class Wrapper(Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    x = Tensor._make_wrapper_subclass(Wrapper, (3,))
    assert refused(torch_kernel, x) == "tensor subclass Wrapper"


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "bits8", "uint4"])
def test_formats_without_a_meaning_are_refused_by_name(torch_kernel, name):
    x = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))
    assert refused(torch_kernel, x) == f"dtype {name}"


def test_powers_of_two_in_a_byte_are_read(torch_kernel):
    x = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    assert_same(torch_kernel(to_torch(x, "float8_e8m0fnu")), expected_of(x))


def test_other_layouts_are_refused_by_name(torch_kernel):
    assert refused(torch_kernel, torch.ones(2, 2).to_mkldnn()) == "layout _mkldnn"


def test_function_transforms_show_all_values_at_once(torch_kernel):
    """Inside `vmap` a tensor hides its batch; the sketch is that of the whole batch."""
    seen = []

    def look(x):
        y = x * 2
        seen.append(torch_kernel(y))
        return y.sum()

    batch = torch.arange(12.0).reshape(4, 3)
    torch.func.vmap(look)(batch)
    torch.func.grad(look)(batch)
    torch.func.vmap(torch.func.grad(look))(batch)
    torch.func.jvp(look, (batch,), (batch,))
    for found in seen:
        assert_same(found, judge(batch * 2))
    assert len(seen) == 4


def test_flushing_subnormals_changes_no_count(torch_kernel, request):
    if request.node.callspec.id == "torch":
        pytest.skip("plain arithmetic sees what the processor makes of it")
    x = torch.tensor([1e-40, -1e-45, 0.0, 1.0])
    expected = judge(x)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = torch_kernel(x)
    finally:
        torch.set_flush_denormal(False)
    assert (found.zeros, found.subnormals) == (1, 2)
    assert_same(found, expected)
