"""Checkpoints (:func:`write`, :func:`newest`): sealed HDF5 files in a folder; ``latest`` names only durable ones.

Each is written under a temporary name, synced to disk, read back and renamed before ``latest`` names it; a crash at any
point leaves the previous checkpoint intact. ``best`` names one that is kept beside the newest. A read validates the
seal, the sizes and the model; if the checkpoint that ``latest`` names is damaged, the newest intact file replaces it.
"""

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from psframe.errors import UserError, reason
from psframe.record import sealed
from psframe.record.folder import Folder
from psframe.record.sealed import At, anywhere

NAME = re.compile(r"epoch-([0-9]{5,18})-step-([0-9]{10,18})\.h5")
#: points at which fault injection may end a run while it writes: each is before the action it names, the last after all
CRASH_POINTS = (
    "write",
    "seal",
    "sync",
    "verify",
    "rename",
    "sync-folder",
    "latest-write",
    "latest-sync",
    "latest-rename",
    "latest-sync-folder",
    "prune",
    "pruned",
)


class Layout(Protocol):
    """The part of ``psframe.memory.arena.Layout`` that checkpoints need."""

    size: int

    def describe(self) -> str: ...


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint: with the config, all that a run needs to continue bit-identically.

    It holds no random generator state, because every draw is a function of (seed, epoch, sample). One exception: the
    residuals of codecs with error feedback, private to each rank, are lost, and a continued run starts without them.

    Attributes
    ----------
    params : ndarray of float32, shape (S,)
    state : ndarray of float32, shape (n_state, S), or its rows
    epoch, step : int
        Epochs and steps done.
    layout : str
        ``Layout.describe`` of the vectors.
    cursor : int
        Samples of epoch ``epoch + 1`` that are done.
    data : int
        Checksum of the training samples; 0 if unknown.
    average : int
        Number of the row of ``state``, from 1, that is an average of the parameters; 0: none is.
    """

    params: np.ndarray
    state: np.ndarray | Sequence[np.ndarray]
    epoch: int
    step: int
    layout: str
    cursor: int = 0
    data: int = 0
    average: int = 0

    @property
    def evaluated(self) -> np.ndarray:
        """Parameters that a trained network has, float32 (S,): their average, if the run kept one."""
        return self.state[self.average - 1] if self.average else self.params


def sha256(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data).hexdigest()


def write(folder: Path, saved: Saved, at: At = anywhere) -> Path:
    """Write a checkpoint durably and return its path; ``latest`` does not name it yet. OSError if it cannot be written.

    The caller must own the folder exclusively: files left half-written by an earlier run are removed.
    """
    path = path_of(folder, saved.epoch, saved.step)
    temporary = path.with_suffix(".h5.part")
    layout = np.frombuffer(saved.layout.encode(), np.uint8)
    state = np.asarray(saved.state, np.float32).reshape(-1, saved.params.size)
    numbers = {"epoch": saved.epoch, "step": saved.step, "cursor": saved.cursor, "data": saved.data}
    numbers |= {"average": saved.average} if saved.average else {}
    clear(folder)
    try:
        sealed.write(temporary, numbers, {"layout": layout, "params": saved.params, "state": state}, at)
        at("rename")
        with Folder(folder) as opened:
            opened.replace(temporary.name, path.name)
            at("sync-folder")
            opened.sync()
    except OSError:
        clear(folder)  # free the space on a full disk
        raise
    return path


def path_of(folder: Path, epoch: int, step: int) -> Path:
    """Return the path of the checkpoint of a place in the training."""
    return folder / f"epoch-{epoch:05d}-step-{step:010d}.h5"


def clear(folder: Path) -> None:
    """Remove the files that an ended run left half-written."""
    with Folder(folder) as opened:
        for name in opened.names():
            if name.endswith(".part"):
                opened.remove(name)


def advance(path: Path, keep: int, at: At = anywhere) -> None:
    """Let ``latest`` name the checkpoint ``path``, and keep the newest ``keep`` up to it. OSError if writing fails.

    Newer checkpoints are removed, too: they belong to an attempt abandoned for one that continued from an earlier one.
    The one that ``best`` names stays.
    """
    sealed.put(path.with_name("latest"), f"{path.name}\n", at, "latest")
    at("prune")
    with Folder(path.parent) as folder:
        files = _files(folder)
        before = [old for old in files if _place(old) <= _place(path.name)]
        best = ""
        with suppress(ValueError):  # one that is damaged names nothing that must stay
            best = _named(folder, "best")
        for old in {*files} - {*before[:keep], best}:
            folder.remove(old)
    at("pruned")


def name_best(path: Path) -> None:
    """Let ``best`` name the checkpoint ``path``, which stays until it names another. OSError if writing fails."""
    sealed.put(path.with_name("best"), f"{path.name}\n")


def step_of(path: Path) -> int:
    """Return the steps done in a checkpoint, by its name."""
    return _place(path.name)[1]


def _named(folder: Folder, pointer: str) -> str:
    """Return the checkpoint's name in a file; "" without a file. OSError or ValueError if it holds anything else."""
    try:
        with folder.open(pointer) as file:
            name: str = file.read(200).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    if not _place(name):
        raise ValueError(f"it names {name[:30]!r}, which is no checkpoint of the folder" if name else "it is empty")
    return name


def _place(name: str) -> tuple[int, ...]:
    """Return the epoch and step in a checkpoint's name; () for other names."""
    match = NAME.fullmatch(name)
    return tuple(map(int, match.groups())) if match else ()


def _files(folder: Folder) -> list[str]:
    """Return the names of a folder's checkpoints, newest first."""
    return sorted(filter(_place, folder.names()), key=_place, reverse=True)


def _candidates(folder: Folder, wrong: list[str]) -> Iterable[str]:
    """Return the checkpoints' names in the order to try them; append any defect of ``latest`` to ``wrong``."""
    files, pointer = _files(folder), folder.path / "latest"
    try:
        name = _named(folder, "latest")
    except (OSError, ValueError) as error:
        wrong.append(f"{str(pointer)!r} ({reason(error)})")
        return files
    if not name:
        wrong += [f"{str(pointer)!r} ({os.strerror(errno.ENOENT)})"] if files else []
        return files
    return [name, *(other for other in files if other != name)]


def epoch_of(folder: Path) -> int | None:
    """Return the epochs done in the checkpoint that a run continues from, by its name; None without a checkpoint."""
    with suppress(FileNotFoundError), Folder(folder) as opened:
        place = next((_place(name) for name in _candidates(opened, []) if opened.holds(name)), None)
        return place[0] if place else None
    return None


def newest(folder: Path, layout: Layout | None) -> tuple[Saved | None, list[str]]:
    """Return the checkpoint to continue from, None if none was written, and a notice on damaged ones passed over.

    ``layout`` is the model's; None accepts any.

    Raises
    ------
    UserError
        No checkpoint is intact, or it belongs to another model.
    """
    wrong: list[str] = []
    with Folder(folder) as opened:
        for name in _candidates(opened, wrong):
            try:
                saved = _read(opened, name, layout)
            except sealed.WRONG as error:
                wrong.append(f"{str(folder / name)!r} ({reason(error)})")
                continue
            notice = f"checkpoints are not as they were written, {', '.join(wrong[:3])}: the run goes on from {name}"
            return saved, [notice] if wrong else []
    if wrong:
        raise UserError(
            f"a checkpoint must be whole, got {', '.join(wrong[:3])}; restore one that is, or start anew with "
            "checkpoint.resume=none"
        )
    return None, []


def best(folder: Path) -> Saved:
    """Return the checkpoint that ``best`` names; UserError if there is none, or it is damaged."""
    try:
        with Folder(folder) as opened:
            if name := _named(opened, "best"):
                return _read(opened, name, None)
    except sealed.WRONG as error:
        raise UserError(
            f"a run's best checkpoint must be whole, got {str(folder)!r} ({reason(error)}); take the newest"
        ) from None
    raise UserError(f"a run must have a best checkpoint, got none in {str(folder)!r}; train with checkpoint.best")


def _read(folder: Folder, name: str, layout: Layout | None) -> Saved:
    """Read a checkpoint; one of ``sealed.WRONG`` if it is damaged, UserError if it belongs to another model."""
    import h5py

    with folder.open(name) as raw:
        sealed.check(raw)
        with h5py.File(raw, "r") as file:
            counts = {name: sealed.count(file, name) for name in ("epoch", "step", "cursor")}
            if (counts["epoch"], counts["step"]) != _place(name):
                raise ValueError(f"it is of epoch {counts['epoch']} and step {counts['step']}")
            # checkpoints of psframe 0.1.0 have none of these
            data, average = (sealed.count(file, name) if name in file.attrs else 0 for name in ("data", "average"))
            text = sealed.array(file, "layout", np.uint8).tobytes().decode()
            if layout and text != layout.describe():
                raise UserError(
                    f"a checkpoint must be of the model that is trained, got {str(folder.path / name)!r}, whose "
                    f"tensors are {text[:200]}; give the config it was made with, or start anew with "
                    "checkpoint.resume=none"
                )
            size = layout.size if layout else None
            params, state = (sealed.array(file, name, np.float32, size) for name in ("params", "state"))
    if params.ndim != 1 or state.ndim != 2 or average > len(state):
        raise ValueError("its arrays have other shapes")
    return Saved(params, state, **counts, layout=text, data=data, average=average)
