"""The microkernel at every block, width and number type; what is chosen for which CPU; other CPUs than this one."""

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from psframe.nn.blocking import MOST_ROWS, _best, blocking, side_by_side
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.parts import columns_of
from psframe.nn.transpose import tile, transpose
from psframe.nn.vectors import Vectors, choose, host
from tests.helpers.layers import half
from tests.helpers.other_cpu import has_avx2, said_on
from tests.helpers.suite import IS_FULL
from tests.helpers.thinned import thinned


@numba.njit
def multiply(block, a, b, c, strides, counts, bias, floor, add):
    """One block at places that are not 0; ``strides`` are a's (row, k, i), b's (k, i), and c's row."""
    multiply_add(
        block,
        (pointer(a), 3, strides[0], strides[1], strides[2]),
        (pointer(b), 5, strides[3], strides[4]),
        (pointer(c), 7, strides[5]),
        counts,
        (pointer(bias), 1),
        floor,
        (pointer(c), 7, strides[5]),
        add,
    )


def expected(block, a, b, c, strides, counts, bias, floor, add):
    lanes, rows, vectors, tail = block
    columns = lanes * vectors + tail
    out = c.copy()
    for r in range(rows):
        to = slice(7 + r * strides[5], 7 + r * strides[5] + columns)
        total = np.zeros(columns) if bias is None else bias[1 : 1 + columns].astype(np.float64)
        for i in range(counts[0]):
            for k in range(counts[1]):
                at = 5 + i * strides[4] + k * strides[3]
                total += a[3 + i * strides[2] + k * strides[1] + r * strides[0]] * b[at : at + columns].astype(
                    np.float64
                )
        out[to] = np.maximum(total + (c[to] if add else 0), floor)
    return out


def check(block, dtype, counts, with_bias, floor, add, strides=(17, 2, 90, 70, 400, 75)):
    rng = np.random.default_rng(0)
    a, b, c = (rng.uniform(-1, 1, size).astype(dtype) for size in (900, 2400, 3000))
    bias = rng.uniform(-1, 1, 99).astype(dtype) if with_bias else None
    want = expected(block, a, b, c, strides, counts, bias, floor, add)
    lengths = tuple((None,) * n for n in block)
    multiply(lengths, a, b, c, strides, counts, bias, floor, add)
    # and nothing is written beside the block
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@settings(max_examples=16, deadline=None, derandomize=True)
@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 9), st.integers(0, 3), st.integers(0, 15),
    st.sampled_from(["float32", "float64"]), st.integers(0, 3), st.integers(0, 5), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_block_of_any_size(lanes, rows, vectors, tail, dtype, n_i, n_k, with_bias, relu, add):
    assume(tail < lanes)
    check((lanes, rows, vectors, tail), dtype, (n_i, n_k), with_bias, 0.0 if relu else -np.inf, add)


def test_nan_stays_and_infinity_counts():
    lengths = tuple((None,) * n for n in (4, 1, 1, 1))
    a, b = np.ones(10, np.float32), np.array([0] * 5 + [np.nan, np.inf, -np.inf, 1, -1], np.float32)
    c = np.zeros(20, np.float32)
    multiply(lengths, a, b, c, (0, 0, 0, 0, 0, 0), (1, 1), None, 0.0, False)
    np.testing.assert_array_equal(c[7:12], [np.nan, np.inf, 0, 1, 0])


def test_number_has_the_same_bits_in_every_block():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(900).astype(np.float32), rng.standard_normal(2400).astype(np.float32)
    found = []
    for block in ((16, 6, 2, 5), (8, 6, 4, 5), (4, 6, 9, 1), (16, 6, 0, 0), (2, 6, 18, 1)):
        c = np.zeros(3000, np.float32)
        lengths = tuple((None,) * n for n in block)
        multiply(lengths, a, b, c, (17, 2, 90, 70, 400, 75), (3, 5), None, -np.inf, False)
        found.append(c)
    for c in (found[1], found[2], found[4]):
        np.testing.assert_array_equal(c, found[0])
    assert not found[3].any()


@given(
    st.integers(1, 300),
    st.integers(1, 600),
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([16, 32]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_blocks_cover_the_product_and_fit(n_rows, n_columns, lanes, n_registers, undivided, power_of_two, in_one):
    b = _best(n_rows, n_columns, lanes, n_registers, n_rows, undivided, power_of_two, MOST_ROWS[in_one])
    assert b.rows <= MOST_ROWS[in_one][max(b.vectors, b.last_vectors + (b.tail > 0)) > 1]
    assert not power_of_two or b.rows.bit_count() == 1
    assert not (undivided and b.vectors)
    last = b.last_vectors * lanes + b.tail
    assert 1 <= b.rows <= n_rows
    assert 0 <= b.tail < lanes
    width = b.lanes * b.vectors
    assert last + (n_columns - last) // max(1, width) * width == n_columns
    assert (n_rows - b.last_rows) % b.rows == 0
    assert 1 <= b.last_rows <= b.rows
    for vectors in (b.vectors, b.last_vectors + (b.tail > 0)):
        assert b.rows * vectors <= max(n_registers * 3 // 4, vectors)


@given(st.integers(1, 2000), st.sampled_from([4, 8]))
def test_blocks_side_by_side_cover_the_columns(n_columns, itemsize):
    b = side_by_side(n_columns, itemsize)
    block, last, n_blocks = columns_of.py_func(b.types, n_columns)
    assert last > 0
    assert n_blocks * block + last == n_columns
    assert max(b.vectors, b.last_vectors + (b.tail > 0)) <= host().n_registers // 8


@numba.njit
def transposed(tile, x, y):
    """Write the middle of ``x`` to ``y``, which is wider by one number at each side."""
    counts = (x.shape[0], x.shape[1] - 2)
    transpose(tile, counts, (pointer(x), 1, x.shape[1]), (pointer(y), 1, y.shape[1]))


@pytest.mark.parametrize("dtype", ["float32", "uint16", "float64"])
@pytest.mark.parametrize(
    ("lanes", "n_rows", "n_columns"), thinned([(16, 19, 37), (4, 16, 8), (16, 3, 5), (8, 1, 9), (2, 7, 1)], (0, 3))
)
def test_transposes_of_any_shape(lanes, n_rows, n_columns, dtype):
    x = np.random.default_rng(0).integers(0, 1 << 16, (n_rows, n_columns + 2)).astype(dtype)
    y = np.full((n_columns, n_rows + 2), 7, dtype)
    transposed(tile(lanes, n_rows, n_columns), x, y)
    np.testing.assert_array_equal(y[:, 1:-1], x[:, 1:-1].T)
    assert (y[:, [0, -1]] == 7).all()


def test_rows_of_bfloat16_are_as_pairs_of_them():
    """An odd number of rows, and NaN behind the last one, which must not be read."""
    rng = np.random.default_rng(0)
    a, rows = (half(rng.standard_normal(size, dtype=np.float32)) for size in (99, (5, 23)))
    b = np.full((6, 23), 0x7FC0, np.uint16)
    b[:5] = rows
    pairs = np.zeros((3, 23), np.uint32)
    pairs[:] = rows[::2]
    pairs[:2] |= rows[1::2].astype(np.uint32) << 16
    found = []
    for of_b, stride in ((b, 23), (pairs, 23)):
        c = np.zeros(100, np.float32)
        lengths = tuple((None,) * n for n in (4, 3, 4, 2))
        given = np.concatenate([np.zeros(5, of_b.dtype), of_b.reshape(-1)])
        multiply(lengths, a, given, c, (7, 2, 0, stride, 0, 30), (1, 5), None, -np.inf, False)
        found.append(c)
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()
    assert np.count_nonzero(found[0]) == 3 * 18


def test_blocking_is_as_asked():
    assert blocking(100, 64, max_rows=8).rows <= 8
    assert blocking(64, 64, 8).lanes * 8 == blocking(64, 64, 4).lanes * 4 == host().n_bytes


@pytest.mark.parametrize(
    ("machine", "cpu", "features", "n_bytes", "n_registers", "fma"),
    [
        ("x86_64", "knl", "+avx512f,+avx512er,+avx2,+fma,+avx,+sse2", 64, 32, True),
        ("x86_64", "znver4", "+sse2,+avx,+fma,+avx2,+avx512f", 64, 32, True),
        ("x86_64", "haswell", "+avx2,-avx512f,+fma,+avx,+sse2", 32, 16, True),
        ("x86_64", "sandybridge", "+avx,+sse2", 32, 16, False),
        ("x86_64", "nehalem", "+sse2,+sse4.2", 16, 16, False),
        ("x86_64", "generic", "", 16, 16, False),
        ("aarch64", "a64fx", "+neon,+sve", 64, 32, True),
        ("aarch64", "neoverse-v1", "+neon,+sve", 32, 32, True),
        ("aarch64", "neoverse-v2", "+neon,+sve,+sve2", 16, 32, True),
        ("aarch64", "cortex-a72", "+neon", 16, 32, True),
        ("aarch64", "", "", 16, 32, True),
    ],
)
def test_vectors_of_other_cpus(machine, cpu, features, n_bytes, n_registers, fma):
    assert choose(machine, cpu, features) == Vectors(n_bytes, n_registers, fma)


@has_avx2
def test_pairs_of_bfloat16_have_the_bits_of_their_definition_by_instruction_and_without():
    assert said_on("haswell", "tests.helpers.bfloat16_digest") == ["emulated", "0"]
    assert said_on(None, "tests.helpers.bfloat16_digest") == ["instruction" if host().fast_bf16 else "emulated", "0"]


@pytest.mark.full
@has_avx2
def test_microkernel_on_other_cpus():
    """Their outputs are those of BLAS, and have the same bits at any width."""
    for part in ("conv", "forward") if IS_FULL else ("conv",):
        (width, digest), (_, mine) = (said_on(cpu, "tests.helpers.layer_digest", part) for cpu in ("haswell", None))
        assert (width, digest) == ("32", mine)


@pytest.mark.full
@has_avx2
def test_microkernel_without_fused_multiplication_has_other_bits():
    (width, digest), (_, mine) = (said_on(cpu, "tests.helpers.layer_digest") for cpu in ("nehalem", None))
    assert width == "16"
    assert digest != mine
