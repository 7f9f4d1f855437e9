"""Checksums of parameters and optimizer state: made as a step writes them, held against what the next one reads."""

import numpy as np

from psframe import compiled
from psframe.memory.arena import Arena


class Sums:
    """What this rank has written to each segment that it updates.

    Attributes
    ----------
    scratch : ndarray of uint64
        Where an update of a segment leaves its checksums (``psframe.compiled._elementwise.Mean.update``).
    """

    def __init__(self, arena: Arena):
        self.arena = arena
        self.scratch = np.zeros(compiled.elementwise.N_SUMS, np.uint64)
        self.half = len(self.scratch) // 2
        #: by where a segment begins: its end, and the checksums by the version of the arena, modulo two
        self.written: dict[int, tuple[int, np.ndarray, list[int]]] = {}

    def forget(self) -> None:
        """Begin anew, where something else than a step has written parameters or state."""
        self.written.clear()

    def note(self, segment: slice) -> bool:
        """Take what an update of a segment has left in ``scratch``; return whether it has read what was written."""
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
        """Do what ``Mean.update`` does, for an optimizer of the user's: before the update, and after it."""
        arena = self.arena
        params, state = (arena.params, arena.state) if begin else (arena.new_params, arena.new_state)
        part = self.scratch[: self.half] if begin else self.scratch[self.half :]
        part[:] = 0
        for place, vector in enumerate((params, *state)[: self.half]):
            part[place] = compiled.elementwise.checksum(vector[segment])

    def hold(self) -> bool:
        """Return whether all segments are still what was written there last."""
        sound, version = True, self.arena.version
        for start, (stop, sums, versions) in self.written.items():
            if versions[version % 2] == version:
                self.read(slice(start, stop), True)
                sound &= bool((sums[version % 2] == self.scratch[: self.half]).all())
        return sound
