"""Blocks of memory: aligned, zeroed, in whole pages, and all that was mapped for them goes back to the kernel."""

import errno
import mmap
from pathlib import Path

import numpy as np
import pytest

from psframe import compiled

PAGE, MIB = mmap.PAGESIZE, 1 << 20
N = 32


def mapped_bytes():
    """Return the size of this process's address space."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmSize:")).split()[1])


@pytest.mark.parametrize(
    ("n_bytes", "align_bytes"),
    [(1, 0), (3 * PAGE + 1, 0), (PAGE, PAGE), (PAGE, 2 * MIB), (MIB + 1, 2 * MIB), (3 * MIB, 2 * MIB), (MIB, 4 * MIB)],
)
def test_block_has_its_pages_alone_and_returns_them(n_bytes, align_bytes):
    """Many at once, so that what stays of their alignment would be far more than what others map meanwhile."""
    before = mapped_bytes()
    blocks = [compiled.numa.Block(n_bytes, 0, align_bytes) for _ in range(N)]
    among = mapped_bytes()
    arrays = [np.frombuffer(block, np.uint8) for block in blocks]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % max(align_bytes, PAGE) == 0
        assert array.size == n_bytes
        assert not array.any()
        array[:] = 1 + number
    assert [(array.min(), array.max()) for array in arrays] == [(1 + n, 1 + n) for n in range(N)]
    del array, blocks, arrays
    whole = N * -(-n_bytes // PAGE) * PAGE
    assert among - before == pytest.approx(whole, abs=4 * MIB)
    assert mapped_bytes() - before < 4 * MIB


def test_array_keeps_its_block():
    array = np.frombuffer(compiled.numa.Block(PAGE, 0, 2 * MIB), np.uint8)[100:]
    array[:] = 7
    others = [compiled.numa.Block(PAGE, 0, 2 * MIB) for _ in range(8)]
    assert all(not np.frombuffer(other, np.uint8).any() for other in others)
    assert (array == 7).all()


@pytest.mark.parametrize("n_bytes", [1 << 62, (1 << 63) + 1, (1 << 64) - 1])
def test_block_beyond_the_address_space_is_an_error(n_bytes):
    with pytest.raises(OSError, match="Cannot allocate memory") as raised:
        compiled.numa.Block(n_bytes, 0, 2 * MIB)
    assert raised.value.errno == errno.ENOMEM
