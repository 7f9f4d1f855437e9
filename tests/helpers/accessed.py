"""Arrays that this process has touched since a moment, as its page tables have it (:class:`Watch`)."""

import ctypes
import mmap
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NOHUGEPAGE = 0, 1, 2, 15  # all but the last change nothing here
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


class Watch:
    """Watch of arrays, each over the whole pages within it, of which it must have three; to be entered as a context.

    The kernel tells of accesses by range of equal memory, so neighbours are given different traits. They lose these at
    the end: memory that is used again would make one range with an array beside it.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        ordered = sorted((array.ctypes.data, array.nbytes, name) for name, array in arrays.items())
        self.spans = {name: (-(-at // PAGE) * PAGE, (at + size) // PAGE * PAGE) for at, size, name in ordered}

    def __enter__(self) -> "Watch":
        for k, (begin, end) in enumerate(self.spans.values()):
            assert end - begin >= 3 * PAGE, "an array must have three pages"
            _advise(begin, end, MADV_NOHUGEPAGE, (MADV_RANDOM, MADV_SEQUENTIAL)[k % 2])
        return self

    def __exit__(self, *_: object) -> None:
        for begin, end in self.spans.values():
            _advise(begin, end, MADV_NORMAL)

    def forget(self) -> None:
        """Begin anew; OSError where the kernel has no such thing."""
        with open("/proc/self/clear_refs", "w") as file:
            file.write("1")

    def touched(self) -> set[str]:
        """Return the arrays of which half and more has been touched: speculation touches a page or two."""
        ranges, found = {}, set()
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if heading := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                at = int(heading[1], 16)
            elif line.startswith("Referenced:"):
                ranges[at] = 1024 * int(line.split()[1])
        for name, (begin, end) in self.spans.items():
            if 2 * ranges[begin] >= end - begin:  # a range begins there, or neighbours have had the same traits
                found.add(name)
        return found


def _advise(begin: int, end: int, *advices: int) -> None:
    for advice in advices:
        if LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice):
            raise OSError(ctypes.get_errno(), "madvise")


def works() -> bool:
    """Return True if this kernel tells what has been touched."""
    array = np.ones(64 * PAGE, np.uint8)
    try:
        with Watch({"": array}) as watch:
            watch.forget()
            before = watch.touched()
            array[:] = 2
            return (before, watch.touched()) == (set(), {""})
    except OSError:
        return False
