"""Beyond the conformance suite: formats that only JAX has, several arrays, several devices."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_conformance import assert_same, expected_of

from sonde.kernels import c, layout, xla
from sonde.kernels import jax as kernels
from sonde.sketch import Sketch, row

KERNELS = [
    pytest.param("c", marks=pytest.mark.skipif(not c.available(), reason="C is not built")),
    "xla",
]


@pytest.fixture(params=KERNELS)
def kernel(request) -> str:
    return request.param


def sketches(rows) -> list[Sketch]:
    table = kernels.table_of(rows)
    return [row(layout.unpack(table), i) for i in range(len(table))]


def sketch(x, kernel) -> Sketch:
    return sketches(jax.jit(lambda x: kernels.sketch(x, kernel=kernel))(x))[0]


@pytest.mark.parametrize(
    "name", ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e8m0fnu"]
)
def test_formats_that_only_jax_has_are_read_bit_for_bit(kernel, name):
    x = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    assert_same(sketch(jnp.asarray(x), kernel), expected_of(x))


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4", "float4_e2m1fn"])
def test_formats_of_less_than_a_byte_are_read(kernel, name):
    x = np.arange(4).astype(getattr(ml_dtypes, name))
    assert_same(sketch(jnp.asarray(x), kernel), expected_of(x))


def test_complex_values_count_by_their_modulus(kernel):
    parts = np.array([3 + 4j, 0, complex(np.inf, 1), complex(np.nan, 1)], np.complex64)
    large = np.array([21 + 28j, -28 + 21j]) * 2.0**123  # of modulus 35 * 2**123: not in float32
    x = np.concatenate([parts, large.astype(np.complex64)])
    assert_same(sketch(jnp.asarray(x), kernel), expected_of(x))
    with jax.enable_x64(True):
        assert_same(sketch(jnp.asarray(x.astype(np.complex128)), kernel), expected_of(x))


def test_many_arrays_of_all_kinds_in_one_call(kernel):
    arrays = [np.arange(n, dtype=d) for n in (0, 1, 700) for d in ("float32", "int8", "float16")]
    found = sketches(jax.jit(lambda *xs: kernels.sketch(*xs, kernel=kernel))(*arrays))
    for x, own in zip(arrays, found, strict=True):
        assert_same(own, expected_of(x))


def test_no_array_makes_no_row(kernel):
    assert kernels.sketch(kernel=kernel).shape == (0, kernels.ROW)


def test_keys_of_random_numbers_have_no_numbers_to_read():
    with pytest.raises(kernels.Unreadable, match="key<fry>: it has no numbers"):
        kernels.check(jax.random.key(0))


def test_platforms_without_a_kernel_of_ours_use_plain_operations():
    assert kernels.kernel_for("tpu") == "xla"
    assert kernels.kernel_for("cpu") == ("c" if c.available() else "xla")


def test_an_empty_row_is_that_of_the_layout():
    assert sketches(xla.empty_rows(2)) == [Sketch.empty()] * 2


@pytest.mark.parametrize("spec", [(), ("a",), (None, "b"), ("a", "b"), (("a", "b"),)])
def test_each_device_reads_its_own_part_of_a_sharded_array(kernel, spec):
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(4, 2), ("a", "b"))
    values = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    x = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
    f = jax.jit(lambda x: kernels.sketch_shards(x * 2, kernel=kernel, mesh=mesh))
    compiled = f.lower(x).compile().as_text()
    found = sketches(f(x))
    assert_same(Sketch.merged(found), expected_of(values * 2))
    parts = len({str(i) for i in x.sharding.devices_indices_map(x.shape).values()})
    assert sum(s.count > 0 for s in found) == parts
    assert [s.data.shape for s in f(x).addressable_shards] == [(1, kernels.ROW)] * 8
    assert "all-gather" not in compiled
