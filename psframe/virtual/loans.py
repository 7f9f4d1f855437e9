"""Pages that virtual ranks have in turn (:class:`Loans`): while they use them, from a stock that stays in the cache."""

import mmap
import os
from collections import defaultdict

import numpy as np

from psframe import compiled
from psframe.virtual.pages import LEAST, forget, inner, is_own, new_file

KEPT = 8  # places of a size that keep their pages while nobody has them


class Loans:
    """Pages for memory that is in use for a while, of which nothing is read before it is written.

    They are neither zeroed nor touched one by one, nor mapped where memory has its last ones again. What no use writes,
    such as the gaps between tensors, stays zero if all memory of a size is of one layout.
    """

    def __init__(self) -> None:
        self._file, self._n_bytes = -1, 0
        self._stock: dict[int, list[int]] = defaultdict(list)  # places in the file, by size
        self._empty: dict[int, list[int]] = defaultdict(list)  # those without pages
        self._place: dict[tuple[int, int], int] = {}  # the last of memory, by its address and size
        self._lent = set[tuple[int, int]]()  # addresses and sizes

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def take(self, memory: np.ndarray) -> None:
        """Lend pages to an array, unless it has some, or cannot have them: it must be of a mapping of its own."""
        whole = inner(memory)
        at, stock = (whole.ctypes.data, len(whole)), self._stock[len(whole)]
        if at in self._lent or len(whole) < LEAST or not is_own(memory):
            return
        if (place := self._place.get(at, -1)) in stock:
            stock.remove(place)
        else:
            empty = self._empty[len(whole)]
            place = (stock or empty).pop() if stock or empty else self._n_bytes
            try:
                self._map(whole, place)
            except OSError:  # no file in memory, or huge pages
                stock += [place] if place < self._n_bytes else []
                return
            self._place[at] = place
        self._lent.add(at)

    def give(self, memory: np.ndarray) -> None:
        """Give the pages of an array back, whoever's they are."""
        whole = inner(memory)
        at = (whole.ctypes.data, len(whole))
        if at not in self._lent:
            forget(memory)
            return
        self._lent.discard(at)
        if len(stock := self._stock[len(whole)]) < KEPT:
            stock.append(self._place[at])
        else:
            compiled.numa.madvise(whole, mmap.MADV_REMOVE)
            self._empty[len(whole)].append(self._place[at])

    def _map(self, whole: np.ndarray, place: int) -> None:
        if self._file < 0:
            self._file = new_file(0)
        if place == self._n_bytes:
            os.ftruncate(self._file, place + len(whole))
            self._n_bytes += len(whole)
        compiled.numa.map_file(whole, self._file, private=False, place=place)
