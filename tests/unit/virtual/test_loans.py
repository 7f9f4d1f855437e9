"""Pages are lent to one array at a time, and of those that nobody has a few stay."""

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe import compiled
from psframe.virtual import loans
from psframe.virtual.loans import Loans
from psframe.virtual.pages import LEAST
from tests.helpers.suite import examples

N, SIZES = 5, (LEAST, 2 * LEAST)


def block(n_bytes):
    """Return a mapping as an array, float32."""
    return np.frombuffer(compiled.numa.Block(n_bytes), np.float32)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, N - 1), st.booleans()), max_size=30), st.integers(0, 2))
def test_no_two_arrays_have_the_same_pages(events, kept):
    before, loans.KEPT = loans.KEPT, kept
    lends, arrays, has = Loans(), [block(SIZES[k % 2]) for k in range(N)], {}
    try:
        for number, (at, takes) in enumerate(events, 1):
            if takes:
                lends.take(arrays[at])
                if at not in has:
                    arrays[at][:] = has[at] = number
            else:
                lends.give(arrays[at])
                has.pop(at, None)
            assert all((arrays[each] == value).all() for each, value in has.items())
    finally:
        loans.KEPT = before


def test_few_pages_stay(monkeypatch):
    monkeypatch.setattr(loans, "KEPT", 2)
    lends, arrays = Loans(), [block(LEAST) for _ in range(N)]
    for array in arrays:
        lends.take(array)
        array[:] = 1
    assert os.fstat(lends._file).st_blocks * 512 == N * LEAST
    for array in arrays:
        lends.give(array)
    assert os.fstat(lends._file).st_blocks * 512 == 2 * LEAST
    for array in arrays:
        lends.take(array)
    assert os.fstat(lends._file).st_size == N * LEAST


def test_memory_that_cannot_have_them_is_left_as_it_is():
    lends, small, owned = Loans(), block(LEAST // 2), np.ones(LEAST, np.float32)
    for memory in (small, owned):
        memory[:] = 1
        lends.take(memory)
        assert memory.all()
    assert lends._file < 0
