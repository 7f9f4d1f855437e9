"""Copies share pages until one is written, and pages are given back within an array alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe import compiled
from psframe.virtual.pages import LEAST, PAGE, Common, Copies, forget, inner
from tests.helpers.suite import examples


def numbers(n_bytes, at=0):
    """Return memory of its own, float32, that begins ``at`` bytes behind a page."""
    return block(at + n_bytes)[at // 4 :]


def block(n_bytes):
    """Return a mapping as an array, float32."""
    return np.frombuffer(compiled.numa.Block(n_bytes), np.float32)


def file_of(array):
    """Return the file whose pages an array has: its inode, 0 for memory that is the process's alone."""
    at = inner(array).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, _, _, inode = line.split()[:5]
        begin, end = (int(word, 16) for word in where.split("-"))
        if begin <= at < end:
            return int(inode)
    raise AssertionError(f"{at:x} is not mapped")


@settings(max_examples=examples(60))
@given(st.data())
def test_copies_are_the_numbers_of_their_time_whoever_writes_later(data):
    n = data.draw(st.sampled_from((8, LEAST // 4, LEAST // 4 + 1000, LEAST)), "numbers")
    sources = [numbers(4 * n, 64 * data.draw(st.integers(0, 3), "at")) for _ in range(2)]
    outs = [numbers(4 * n, 64 * data.draw(st.integers(0, 63), "at")) for _ in range(3)]
    copies, expected = Copies(), [out.copy() for out in outs]
    for value in range(data.draw(st.integers(1, 12), "operations")):
        source, out = (data.draw(st.integers(0, len(of) - 1)) for of in (sources, outs))
        place = data.draw(st.integers(0, n - 1))
        written = data.draw(st.sampled_from(("source", "copy", "neither")))
        if written == "source":
            sources[source][place] = value
        elif written == "copy":
            outs[out][place] = expected[out][place] = value
        else:
            copies.copy(sources[source], outs[out])
            expected[out][:] = sources[source]
        for found, right in zip(outs, expected, strict=True):
            assert found.tobytes() == right.tobytes()


def test_copies_of_the_same_numbers_have_the_same_pages():
    source, copies, few = numbers(4 * LEAST), Copies(), numbers(8)
    first, second, third = (numbers(4 * LEAST, 64 * k) for k in (0, 0, 0))
    for out in (first, second, third):
        copies.copy(few, few.copy())  # between them, as a clock is
        copies.copy(source, out)
    before = file_of(third)
    assert [file_of(out) for out in (first, second)] == [0, before]
    assert before
    source[LEAST // 2] = np.nan
    for out in (third, second, first):
        copies.copy(source, out)
    assert file_of(first) == file_of(second) not in (0, before)
    assert file_of(third) != before, "it keeps a file that nobody else has"


def test_arrays_that_have_the_same_numbers_come_to_share_them():
    three, copies = [numbers(2 * LEAST) for _ in range(3)], Copies()
    for memory in three:
        memory[:] = np.arange(len(memory))
        copies.copy(memory, memory)
    assert file_of(three[1]) == file_of(three[2]) != 0
    three[2][5] = -1
    assert [memory[5] for memory in three] == [5, 5, -1]


def test_copies_without_a_file_in_memory(monkeypatch):
    def refused(*_):
        raise OSError("no file in memory here")

    monkeypatch.setattr("os.memfd_create", refused)
    source, out = numbers(2 * LEAST), numbers(2 * LEAST, 64)
    source[:] = np.arange(len(source))
    copies = Copies()
    for _ in range(2):
        out[:] = -1
        copies.copy(source, out)
        assert np.array_equal(source, out)
        assert file_of(out) == 0


def test_memory_of_a_number_and_a_size_is_the_same_for_all():
    common = Common()
    first, second, other, smaller = (block(n) for n in (4 * PAGE, 4 * PAGE, 4 * PAGE, 2 * PAGE))
    assert all([common.share(0, first), common.share(0, second), common.share(1, other), common.share(0, smaller)])
    first[:] = 1
    assert np.array_equal(first, second)
    assert not other.any()
    assert not smaller.any()
    del common, first
    second[0] = 2  # its pages are there as long as it is
    assert second[1] == 1


def test_memory_within_other_memory_is_not_shared():
    memory = block(4 * PAGE)
    memory[:] = 1
    assert not Common().share(0, memory[PAGE // 4 :])
    assert not Common().share(0, np.ones(4 * PAGE, np.float32))
    assert memory.all()
    assert file_of(memory) == 0


def test_memory_is_not_shared_without_a_file_in_memory(monkeypatch):
    def refused(*_):
        raise OSError("no file in memory here")

    monkeypatch.setattr("os.memfd_create", refused)
    assert not Common().share(0, block(4 * PAGE))


@pytest.mark.parametrize("at", [0, 4, PAGE - 4])
def test_only_pages_within_an_array_are_given_back(at):
    memory = numbers(6 * PAGE)
    memory[:] = 1
    part = memory[at // 4 : at // 4 + 3 * PAGE // 4]
    forget(part)
    gone = np.flatnonzero(memory == 0)
    assert gone.tolist() == list(range(-(-at // PAGE) * PAGE // 4, (at + 3 * PAGE) // PAGE * PAGE // 4))
