"""Codecs against NumPy: rounding, error feedback, what a divergence looks like, and the same bits on any CPU."""

import tracemalloc
from math import ceil, fsum

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba.core.registry import CPUDispatcher

from psframe.collectives import codec_loops
from psframe.collectives.codecs import BF16, FP16, TABLE, OneBit, TopK
from psframe.collectives.compression import forget
from psframe.config.registry import bind
from psframe.errors import UserError
from tests.helpers.codec_digest import MAKE, F, digest, encode, numbers
from tests.helpers.other_cpu import CPUS, has_avx2, said_on
from tests.helpers.thinned import thinned

SIZES = (0, 1, 7, 2047, 2049)
every = pytest.mark.parametrize("name", MAKE)

BITS = arrays(np.uint32, st.integers(0, 70), elements=st.integers(0, 2**32 - 1))
FEW = [-2, -1, -0.0, 0, 1, 2]  # among them many are equal
NUMBERS = st.floats(-(2.0**90), 2.0**90, width=32) | st.sampled_from(FEW)
STEPS = arrays(F, st.tuples(st.integers(1, 4), st.integers(0, 90)), elements=NUMBERS)


def decode(codec, payload, size):
    total = np.zeros(size, F)
    codec.add(payload, total)
    return total


def passed(codec, x):
    return decode(codec, encode(codec, x), len(x))


def to_half(x):
    return np.where(np.isfinite(x), np.clip(x, -65504, 65504), x).astype(np.float16)


def check_halves(x):
    codec, want = FP16(len(x), np.zeros), to_half(x)
    payload = encode(codec, x).view(np.float16)
    np.testing.assert_array_equal(payload, want)
    np.testing.assert_array_equal(np.signbit(payload), np.signbit(x))
    np.testing.assert_array_equal(decode(codec, payload.view(np.uint8), len(x)), want.astype(F))


@given(BITS)
def test_halves_are_those_of_numpy(bits):
    check_halves(bits.view(F))


def test_halves_and_what_lies_between():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(F)
    steps = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(F)
    steps[-1] = 65536  # where the next half would be, if there were one
    middles = (steps[1:] + steps[:-1]) / 2
    for x in (halves, middles, np.nextafter(middles, F(np.inf)), np.nextafter(middles, F(0))):
        check_halves(np.concatenate([x, -x]))


@given(BITS)
@example((np.arange(1 << 16) << 16 | np.array([[0], [1], [0x7FFF], [0x8000], [0x8001]])).astype(np.uint32).ravel())
def test_bf16_is_the_nearest_upper_half(bits):
    x = bits.view(F)
    below, rest = (bits >> 16).astype(np.uint16), bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (below % 2 == 1))
    want = (below + up).astype(np.uint16)
    codec = BF16(len(x), np.zeros)
    payload = encode(codec, x)
    got, number = payload.view(np.uint16), ~np.isnan(x)
    np.testing.assert_array_equal(got[number], want[number])
    decoded = decode(codec, payload, len(x))
    assert np.isnan(decoded[~number]).all()
    np.testing.assert_array_equal(decoded[number], (want[number].astype(np.uint32) << 16).view(F))


def mean(x):
    return fsum(x.tolist()) / max(len(x), 1)


def check_onebit(codec, x, block):
    v = x + codec.residual
    payload, size = encode(codec, x), len(x)
    n_blocks = ceil(size / block)
    means = payload[: 8 * n_blocks].view(F).reshape(n_blocks, 2)
    for pair, part in zip(means, (v[i : i + block] for i in range(0, size, block)), strict=True):
        # of one sign, in float64, and rounded once
        np.testing.assert_allclose(pair, [mean(part[part >= 0]), mean(part[part < 0])], rtol=2e-7, atol=1e-45)
    packed = np.packbits(v >= 0, bitorder="little")
    np.testing.assert_array_equal(payload[8 * n_blocks :][: len(packed)], packed)
    assert not payload[8 * n_blocks + len(packed) :].any()
    decoded = means[np.arange(size) // block, np.where(v >= 0, 0, 1)]
    np.testing.assert_array_equal(decode(codec, payload, size), decoded)
    np.testing.assert_array_equal(codec.residual, v - decoded)


@given(STEPS, st.integers(1, 100))
def test_onebit_is_that_of_the_paper(steps, block):
    codec = OneBit(steps.shape[1], np.zeros, block=block)
    for x in steps:
        check_onebit(codec, x, block)


@pytest.mark.parametrize("size", [*SIZES, 10_000])
@pytest.mark.parametrize("block", thinned([1, 7, 2048, 10**30], (1, 2)))
def test_onebit_in_blocks(size, block):
    codec = OneBit(size, np.zeros, block=block)
    for step in range(3):
        check_onebit(codec, numbers(step, size), min(block, max(size, 1)))


def check_topk(codec, x):
    v = x + codec.residual
    payload, k = encode(codec, x), codec.k
    nan_first = np.lexsort((np.arange(len(v)), -np.abs(v), ~np.isnan(v)))
    chosen = np.sort(nan_first[:k])
    np.testing.assert_array_equal(payload[: 4 * k].view(np.int32), chosen)
    np.testing.assert_array_equal(payload[4 * k :].view(F), v[chosen])
    want = np.zeros_like(v)
    want[chosen] = v[chosen]
    np.testing.assert_array_equal(decode(codec, payload, len(x)), want)
    v[chosen] = 0
    np.testing.assert_array_equal(codec.residual, v)


@given(STEPS, st.floats(0, 1, exclude_min=True))
def test_topk_is_a_stable_sort(steps, density):
    codec = TopK(steps.shape[1], np.zeros, density=density)
    for x in steps:
        check_topk(codec, x)


@given(BITS, st.floats(0, 1, exclude_min=True))
@example(np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7FFFFFFF], np.uint32), 0.4)  # the first NaNs
def test_topk_of_any_bits(bits, density):
    check_topk(TopK(len(bits), np.zeros, density=density), bits.view(F))


@pytest.mark.parametrize("size", [*SIZES, 100_000])
@pytest.mark.parametrize("density", [1e-9, 0.01, 0.5, 1])
def test_topk_at_sizes(size, density):
    codec = TopK(size, np.zeros, density=density)
    for step in range(3):
        check_topk(codec, np.round(numbers(step, size), 1) if step else numbers(step, size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("make", "keys"), [(OneBit, {}), (OneBit, {"block": 33}), (TopK, {}), (TopK, {"density": 0.3})]
)
def test_remainder_comes_later(make, keys, size):
    codec, total = make(size, np.zeros, **keys), np.zeros(size)
    steps = numbers(size, 200, size)
    for x in steps:
        total += passed(codec, x)
    np.testing.assert_allclose(total + codec.residual, steps.sum(0, dtype=np.float64), atol=1e-3)


@every
@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_payloads(name, size):
    codec, x = MAKE[name](size, np.zeros), numbers(0, size)
    n_bytes = {"fp16": 2 * size, "bf16": 2 * size, "topk": 8 * ceil(size / 100),
               "onebit": 8 * ceil(size / 2048) + 4 * ceil(size / 32)}[name]  # fmt: skip
    assert codec.n_bytes == n_bytes
    assert decode(codec, encode(codec, x), size).shape == x.shape
    np.testing.assert_array_equal(x, numbers(0, size))  # which is read, and no more


@every
@pytest.mark.parametrize("size", SIZES)
def test_payloads_are_added(name, size):
    codec, start, want = MAKE[name](size, np.zeros), numbers(9, size), numbers(9, size)
    payloads = np.zeros((3, codec.n_bytes), np.uint8)  # one after the other, as they arrive
    for step, payload in enumerate(payloads):
        codec.encode(numbers(step, size), payload)
        want += decode(codec, payload, size)
        MAKE[name](size, np.zeros).add(payload, start)
    np.testing.assert_array_equal(start, want)


@every
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 7, 2049])
def test_divergence_is_seen(name, value, size):
    for at in {0, size // 2, size - 1}:
        codec, x = MAKE[name](size, np.zeros), numbers(0, size)
        x[at] = value
        assert not np.isfinite(passed(codec, x)[at])
        if name == "onebit":
            assert not np.isfinite(passed(codec, numbers(1, size))[at])


@every
@pytest.mark.parametrize("size", [1, 7, 2049])
def test_codec_that_forgets_goes_on_from_the_finite_numbers_it_had(name, size):
    codec, other = MAKE[name](size, np.zeros), MAKE[name](size, np.zeros)
    for one in (codec, other):
        if hasattr(one, "residual"):
            one.residual[:] = np.resize(np.array([np.nan, 1.5, np.inf, 3e38, -np.inf, -2, -np.nan], F), size)
    forget(codec)
    if hasattr(codec, "residual"):
        other.residual[~np.isfinite(other.residual)] = 0
        np.testing.assert_array_equal(codec.residual, other.residual)
    np.testing.assert_array_equal(encode(codec, numbers(0, size)), encode(other, numbers(0, size)))


@every
def test_step_allocates_nothing(name):
    arrays = []

    def allocate(n, dtype):
        arrays.append(np.zeros(n, dtype))
        return arrays[-1]

    size = 100_000
    codec, x, total = MAKE[name](size, allocate), numbers(0, size), np.zeros(size, F)
    out, n_arrays = np.empty(codec.n_bytes, np.uint8), len(arrays)
    for _ in range(3):
        codec.encode(x, out)
        codec.add(out, total)
    tracemalloc.start()
    codec.encode(x, out)
    codec.add(out, total)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4000, "more than views"
    assert len(arrays) == n_arrays


@pytest.mark.full
def test_jitted_code_allocates_nothing():
    """What Numba calls to allocate an array stands in the machine code of no function of the module."""
    for make in MAKE.values():
        passed(make(10, np.zeros), numbers(0, 10))
    functions = [f for f in vars(codec_loops).values() if isinstance(f, CPUDispatcher)]
    kernels = [f for f in functions if f.targetoptions.get("no_cpython_wrapper") is None]
    assert len(kernels) == 8
    for kernel in kernels:
        fresh = numba.njit(error_model="numpy")(kernel.py_func)  # one from the disk has no text
        for signature in kernel.signatures:
            fresh.compile(signature)
        functions.append(fresh)
    code = [o.library.get_asm_str() for f in functions if f not in kernels for o in f.overloads.values()]
    assert len(code) > len(kernels)
    assert not any("NRT_MemInfo_alloc" in text for text in code)


def test_keys_of_codecs():
    for spec, rule in (({"name": "topk", "density": 0}, "must be a number > 0"),
                       ({"name": "topk", "density": 1.5}, "must be a number <= 1"),
                       ({"name": "onebit", "block": 0}, "must be a whole number >= 1"),
                       ({"name": "fp16", "blok": 3}, "takes no such key")):  # fmt: skip
        with pytest.raises(UserError, match=rule):
            bind("codec", TABLE, spec)
    with pytest.raises(UserError, match=r"fewer than 2\*\*31"):
        TopK(2**31, np.zeros)
    assert bind("codec", TABLE, {"name": "topk", "density": 1})(50, np.zeros).k == 50
    assert bind("codec", TABLE, {"name": "onebit", "block": 8})(50, np.zeros).n_bytes == 7 * 8 + 8


@pytest.mark.full
@has_avx2
@pytest.mark.parametrize("cpu", CPUS)
def test_codecs_on_other_cpus(cpu):
    assert said_on(cpu, "tests.helpers.codec_digest") == [digest()]
