"""Pages of virtual ranks: given back (:func:`forget`), shared until they are written (:class:`Copies`), or by all.

One rank at a time uses what they have in :class:`Common`.
"""

import mmap
import os
from contextlib import suppress

import numpy as np

from psframe import compiled

PAGE = compiled.numa.PAGE_BYTES
LEAST = 16 * PAGE  # of less, a copy is cheaper than pages that are shared


def forget(memory: np.ndarray) -> None:
    """Give back the pages that lie within an array, of which nothing is read before it is written."""
    if len(whole := inner(memory)):
        with suppress(OSError):  # of huge pages that are reserved, which older kernels keep
            compiled.numa.madvise(whole, mmap.MADV_DONTNEED)


def inner(memory: np.ndarray) -> np.ndarray:
    """Return the full pages of a C-contiguous array, uint8 (n,)."""
    numbers = memory.reshape(-1).view(np.uint8)
    begin = -numbers.ctypes.data % PAGE
    return numbers[begin : max(begin, len(numbers) - (numbers.ctypes.data + len(numbers)) % PAGE)]


class Copies:
    """Copies of one memory. Those of the same numbers share their pages, until one is written.

    A thousand workers that have pulled the same parameters have them once.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._numbers = np.empty(0, np.int32)  # that the file has

    def __del__(self) -> None:
        self._close()

    def copy(self, source: np.ndarray, out: np.ndarray) -> None:
        """Write ``source`` (n,) to ``out`` (n,), of the same dtype; they may be the same array."""
        whole = inner(out)
        if len(whole) < LEAST:
            out[:] = source
            return
        begin = whole.ctypes.data - out.ctypes.data
        end = begin + len(whole)
        bytes_in, bytes_out = source.view(np.uint8), out.view(np.uint8)
        try:
            self._keep(bytes_in[begin:end])
            compiled.numa.map_file(whole, self._fd, private=True)
        except OSError:  # no file in memory, or huge pages
            out[:] = source
            return
        bytes_out[:begin], bytes_out[end:] = bytes_in[:begin], bytes_in[end:]

    def _keep(self, numbers: np.ndarray) -> None:
        """Put numbers into a file, unless the last one has them. Its pages live as long as they are mapped."""
        if np.array_equal(numbers.view(np.int32), self._numbers):
            return
        self._close()
        self._fd = _file(len(numbers))
        memory = mmap.mmap(self._fd, len(numbers), mmap.MAP_SHARED)
        np.copyto(np.frombuffer(memory, np.uint8), numbers)
        self._numbers = np.frombuffer(memory, np.int32)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._numbers = -1, np.empty(0, np.int32)


class Common:
    """Memory of many ranks, of which one at a time uses its own, and reads nothing there that it has not written."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], int] = {}  # by number and size

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)

    def share(self, number: int, memory: np.ndarray) -> bool:
        """Let ``memory`` have the pages of all of this number and size; return False where it cannot.

        It must be a mapping of its own (:class:`psframe.compiled.numa.Block`): others would come to lie there later.
        """
        whole = inner(memory)
        if not isinstance(memory.base, compiled.numa.Block) or whole.ctypes.data != memory.ctypes.data:
            return False
        try:
            if (number, len(whole)) not in self._files:
                self._files[number, len(whole)] = _file(len(whole))
            compiled.numa.map_file(whole, self._files[number, len(whole)], private=False)
        except OSError:  # no file in memory, or huge pages
            return False
        return True


def _file(n_bytes: int) -> int:
    """Return a file in memory, zeroed, whose pages live as long as they are mapped."""
    file = os.memfd_create("pages")
    os.ftruncate(file, n_bytes)
    return file
