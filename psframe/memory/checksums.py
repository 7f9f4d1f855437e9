"""Checksums of parameters and optimizer state (:class:`Checksums`), made by a step and verified by the next."""

import numpy as np

from psframe import compiled
from psframe.memory.arena import Arena


class Checksums:
    """Checksums of the segments that this rank updates, as it last wrote them.

    Attributes
    ----------
    scratch : ndarray of uint64, shape (N_SUMS,)
        Output of a segment's update: checksums before, then after it (``psframe.compiled._elementwise.Mean.update``).
    """

    def __init__(self, arena: Arena):
        self.arena = arena
        self.scratch = np.zeros(compiled.elementwise.N_SUMS, np.uint64)
        self.half = len(self.scratch) // 2
        #: by a segment's start: its end, its checksums by arena version modulo 2, and the versions these belong to
        self.written: dict[int, tuple[int, np.ndarray, list[int]]] = {}

    def forget(self) -> None:
        """Drop all checksums, after anything but a step has written parameters or state."""
        self.written.clear()

    def note(self, segment: slice) -> bool:
        """Store a segment's checksums from ``scratch`` after its update; return False if its input had changed."""
        start, stop, _ = segment.indices(self.arena.layout.size)
        if start not in self.written:
            self.written[start] = stop, np.zeros((2, self.half), np.uint64), [-1, -1]
        _, sums, versions = self.written[start]
        version = self.arena.version
        sound = versions[version % 2] != version or bool((sums[version % 2] == self.scratch[: self.half]).all())
        sums[(version + 1) % 2] = self.scratch[self.half :]
        versions[(version + 1) % 2] = version + 1
        return sound

    def read(self, segment: slice, begin: bool) -> None:
        """Fill ``scratch`` as ``Mean.update`` does, for a user's own optimizer.

        Call before the update with ``begin``, and after it without.
        """
        arena = self.arena
        params, state = (arena.params, arena.state) if begin else (arena.new_params, arena.new_state)
        part = self.scratch[: self.half] if begin else self.scratch[self.half :]
        part[:] = 0
        for place, vector in enumerate((params, *state)[: self.half]):
            part[place] = compiled.elementwise.checksum(vector[segment])

    def hold(self) -> bool:
        """Return True if all segments are still as last written."""
        sound, version = True, self.arena.version
        for start, (stop, sums, versions) in self.written.items():
            if versions[version % 2] == version:
                self.read(slice(start, stop), True)
                sound &= bool((sums[version % 2] == self.scratch[: self.half]).all())
        return sound
