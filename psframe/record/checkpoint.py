"""Checkpoints: HDF5 files that are written once, checksummed, and named by ``latest`` only when they are durable.

A file begins with a seal, in the block that HDF5 leaves to its user: a line with the SHA-256 of all that follows. It is
compared before the HDF5 library sees the file, which on damaged ones may crash or never return.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psframe import h5files, outside
from psframe.errors import UserError, reason

SEAL_BYTES = 512  # the smallest block that HDF5 leaves
MOST_NAME = 4096  # bytes of `latest`
SEAL = "psframe checkpoint 1, sha256 {}\n"


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Attributes
    ----------
    params : ndarray of float32, shape (S,)
    state : ndarray of float32, shape (n_state, S)
    epoch, step : int
        Epochs and steps done.
    layout : str
        Of the vectors: ``Layout.describe``.
    cursor : int
        Samples of epoch ``epoch + 1`` that are done.
    """

    params: np.ndarray
    state: np.ndarray
    epoch: int
    step: int
    layout: str
    cursor: int = 0


def sha256(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()


def write(folder: Path, saved: Saved) -> Path:
    """Write a checkpoint durably and return its path; ``latest`` does not name it yet. OSError where it cannot."""
    import h5py  # rank 0 alone needs it

    inside = f"-step-{saved.step:010d}" if saved.cursor else ""
    path = folder / f"epoch-{saved.epoch:05d}{inside}.h5"
    temporary = path.with_suffix(".h5.part")
    with h5py.File(temporary, "w", userblock_size=SEAL_BYTES) as file:
        file.attrs.update(epoch=saved.epoch, step=saved.step, cursor=saved.cursor, layout=saved.layout)
        file["params"], file["state"] = saved.params, saved.state
    seal = _seal(temporary)
    with open(temporary, "r+b") as sealed:
        sealed.write(seal)
    _sync(temporary)
    os.replace(temporary, path)
    _sync(folder)
    return path


def _seal(path: Path) -> bytes:
    """Return the seal of what a file holds behind its first SEAL_BYTES bytes, padded to that length."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(SEAL_BYTES)
        while part := file.read(1 << 20):
            digest.update(part)
    return SEAL.format(digest.hexdigest()).encode().ljust(SEAL_BYTES, b"\0")


def advance(path: Path, keep: int) -> None:
    """Let ``latest`` name the checkpoint ``path``, and remove all but the newest ``keep``."""
    folder = path.parent
    pointer = folder / "latest.part"
    pointer.write_text(path.name + "\n", encoding="utf-8")
    _sync(pointer)
    os.replace(pointer, folder / "latest")
    _sync(folder)
    for old in sorted(p for p in folder.glob("epoch-*.h5") if p.name <= path.name)[:-keep]:
        old.unlink()


def latest(folder: Path, layout: str) -> Saved | None:
    """Return the newest checkpoint, or None where a run has written none yet.

    Raises
    ------
    UserError
        A damaged file, or one whose layout is not ``layout``.
    """
    try:
        name = outside.text(folder / "latest", MOST_NAME, "replace").strip()
    except FileNotFoundError:
        return None
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UserError(
            f"{str(folder / 'latest')!r} must hold the name of a checkpoint beside it, got {name!r}; write one there"
        )
    saved = _read(path := folder / name)
    if saved.layout != layout:
        raise UserError(
            f"a checkpoint must be of the model that is trained, got {str(path)!r}, whose tensors are "
            f"{saved.layout[:200]}; give the config it was made with, or start anew with checkpoint.resume=none"
        )
    return saved


def _read(path: Path) -> Saved:
    try:
        with outside.opened(path) as file:
            found = file.read(SEAL_BYTES)
        if found != _seal(path):
            raise ValueError("its checksum differs" if found.startswith(SEAL[:20].encode()) else "none of psframe's")
        # the seal keeps damage away, and not whoever made the file
        with h5files.opened(path) as file:
            counts = {name: int(h5files.attribute(file, name)) for name in ("epoch", "step", "cursor")}
            params, state = (h5files.array(file, name) for name in ("params", "state"))
            if params is None or state is None or params.ndim != 1 or state.shape[1:] != params.shape:
                raise ValueError("its arrays are not those of a checkpoint")
            if min(counts.values()) < 0:
                raise ValueError(f"it counts {counts['epoch']} epochs and {counts['step']} steps")
            layout = str(h5files.attribute(file, "layout"))
            return Saved(params[()], state[()], **counts, layout=layout)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(
            f"a checkpoint must be whole, got {str(path)!r} ({reason(error)}); name a whole file of that folder in its "
            "`latest`, or start anew with checkpoint.resume=none"
        ) from None


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
