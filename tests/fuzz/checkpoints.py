"""Checkpoints, and what says which of them is the newest."""

from pathlib import Path

import numpy as np

from psframe.record import checkpoint, sealed
from tests.fuzz.base import Prepared, told
from tests.fuzz.hdf5_files import build
from tests.helpers.checkpoints import Ten, reseal


def written(folder: Path) -> Path:
    """Write a checkpoint that ``latest`` names, and return its path."""
    params, state = np.zeros(10, np.float32), np.zeros((1, 10), np.float32)
    path = checkpoint.write(folder, checkpoint.Saved(params, state, 1, 5, Ten().describe()))
    checkpoint.advance(path, 3)
    return path


def checkpoints(folder: Path) -> Prepared:
    """The input is the file, then a program that builds it, sealed as psframe would."""
    path = written(folder)
    sound_file = path.read_bytes()
    layout = np.frombuffer(Ten().describe().encode(), np.uint8)
    arrays = {"layout": layout, "params": np.zeros(10, np.float32), "state": np.zeros((1, 10), np.float32)}

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with told():
            checkpoint.newest(folder, Ten())
        build(path, data, arrays, {"epoch": 1, "step": 5, "cursor": 0}, sealed.SEAL_BYTES)
        reseal(path)
        with told():
            checkpoint.newest(folder, Ten())

    return Prepared([sound_file, sound_file[:700], bytes(40)], read)


def pointer(folder: Path) -> Prepared:
    """The input is ``latest``; what it should name stands in where it names nothing."""
    path = written(folder)

    def read(data: bytes) -> None:
        (folder / "latest").write_bytes(data)
        with told():
            found, _ = checkpoint.newest(folder, Ten())
            assert found is not None
            assert found.step == 5

    return Prepared([path.name.encode(), b"../latest", b"/dev/zero"], read)


TARGETS = {"checkpoint": checkpoints, "latest": pointer}
