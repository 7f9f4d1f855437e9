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
FEW = 1024  # numbers


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


def is_own(memory: object) -> bool:
    """Return True if an array lies in a mapping of its own, so that nothing else comes to lie there later."""
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return isinstance(memory, compiled.numa.Block)


def new_file(n_bytes: int) -> int:
    """Return a file in memory, zeroed, whose pages live as long as they are mapped."""
    file = os.memfd_create("pages")
    os.ftruncate(file, n_bytes)
    return file


class Copies:
    """Copies of one memory. Those of the same numbers share their pages from the second on, until one is written.

    A thousand workers that have pulled the same parameters have them in the pages of one. Where no two pull the same,
    each has pages of its own, which are written faster than new ones are mapped.

    Parameters
    ----------
    at_once : bool
        True: the first copy shares, too.
    """

    def __init__(self, at_once: bool = False) -> None:
        self._at_once = at_once
        self._last = np.empty(0, np.int32)  # numbers of the last copy
        self._fd = -1  # that has them, if there are two
        self._mapped = set[int]()  # addresses of copies that have had pages of a file

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
        if self._is_first(bytes_in[begin:end].view(np.int32)) and not self._at_once:
            if whole.ctypes.data in self._mapped and not np.may_share_memory(source, out):
                self._mapped.discard(whole.ctypes.data)
                _own(whole)
            out[:] = source
            return
        try:
            self._keep()
            compiled.numa.map_file(whole, self._fd, private=True)
        except OSError:  # no file in memory, or huge pages
            out[:] = source
            return
        self._mapped.add(whole.ctypes.data)
        bytes_out[:begin], bytes_out[end:] = bytes_in[:begin], bytes_in[end:]

    def _is_first(self, numbers: np.ndarray) -> bool:
        """Return True if the last copy had other numbers, and remember these."""
        few = slice(FEW)  # almost always tell enough
        if np.array_equal(numbers[few], self._last[few]) and np.array_equal(numbers, self._last):
            return False
        if len(numbers) == len(self._last) and self._fd < 0:
            self._last[:] = numbers
        else:
            self._last = numbers.copy()
        self._close()
        return True

    def _keep(self) -> None:
        """Put the last numbers into a file, unless they are in one. Its pages live as long as they are mapped."""
        if self._fd < 0:
            self._fd = new_file(self._last.nbytes)
            memory = mmap.mmap(self._fd, self._last.nbytes, mmap.MAP_SHARED)
            shared = np.frombuffer(memory, np.int32)
            np.copyto(shared, self._last)
            self._last = shared

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Common:
    """Memory of many ranks, of which one at a time uses its own, and reads nothing there that it has not written."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], int] = {}  # by number and size

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)

    def share(self, number: int, memory: np.ndarray) -> bool:
        """Let ``memory`` have the pages of all of this number and size; return False where it cannot.

        It must be an entire mapping: what else lay in it would have them, too.
        """
        whole = inner(memory)
        if not isinstance(memory.base, compiled.numa.Block) or whole.ctypes.data != memory.ctypes.data:
            return False
        try:
            if (number, len(whole)) not in self._files:
                self._files[number, len(whole)] = new_file(len(whole))
            compiled.numa.map_file(whole, self._files[number, len(whole)], private=False)
        except OSError:  # no file in memory, or huge pages
            return False
        return True


def _own(memory: np.ndarray) -> None:
    """Let memory that has pages of a file have zeroed ones of its own, so that the file's may go."""
    with suppress(OSError), open("/dev/zero", "r+b", buffering=0) as zeros:
        compiled.numa.map_file(memory, zeros.fileno(), private=True)
