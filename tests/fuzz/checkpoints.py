"""Checkpoints, and what says which of them is the newest."""

from pathlib import Path

import numpy as np

from psframe.record import checkpoint
from tests.fuzz.base import Prepared, told
from tests.fuzz.hdf5_files import build

LAYOUT = "0.w [10] [0] at 0"


def checkpoints(folder: Path) -> Prepared:
    """The input is the file, then a program that builds it, sealed as psframe would."""
    saved = checkpoint.Saved(np.zeros(10, np.float32), np.zeros((1, 10), np.float32), 1, 5, LAYOUT)
    path = checkpoint.write(folder, saved)
    checkpoint.advance(path, 3)
    sound_file = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with told():
            checkpoint.latest(folder, LAYOUT)
        arrays = {"params": saved.params, "state": saved.state}
        build(path, data, arrays, {"epoch": 1, "step": 5, "layout": LAYOUT}, checkpoint.SEAL_BYTES)
        seal = checkpoint._seal(path)
        with open(path, "r+b") as file:
            file.write(seal)
        with told():
            checkpoint.latest(folder, LAYOUT)

    return Prepared([sound_file, sound_file[:700], bytes(40)], read)


def pointer(folder: Path) -> Prepared:
    """The input is ``latest``."""
    path = checkpoint.write(folder, checkpoint.Saved(np.zeros(1), np.zeros((1, 1)), 1, 5, LAYOUT))

    def read(data: bytes) -> None:
        (folder / "latest").write_bytes(data)
        with told():
            checkpoint.latest(folder, LAYOUT)

    return Prepared([path.name.encode(), b"../latest", b"/dev/zero"], read)


TARGETS = {"checkpoint": checkpoints, "latest": pointer}
