"""Files of ``bench collectives`` (:class:`Measured`): a table as CSV; every repetition, with the topology, as HDF5."""

import csv
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from psframe.bench.collective_methods import OPERATIONS
from psframe.bench.collectives import ALL_METHODS, MEMORIES, slowest_s
from psframe.cluster.parser import no_folder
from psframe.doctor.machine import machine
from psframe.errors import UserError, reason
from psframe.memory.topology import Topology
from psframe.record.folder import Folder, chosen_file
from psframe.record.spread import spread

CSV, HDF5 = "collectives.csv", "collectives.h5"
COLUMNS = (
    "environment", "containers", "share_ipc", "operation", "method", "memory", "n_ranks", "n_nodes", "bytes",
    "repetitions", "median_s", "low_s", "high_s", "placed", "mpi",
)  # fmt: skip
#: set by launch/containers.sh: the number of containers of the ranks, and a flag if these share memory
CONTAINERS, SHARE_IPC = "PSFRAME_N_CONTAINERS", "PSFRAME_SHARE_IPC"


@dataclass
class Measured:
    """Measurements of an operation by one method in one kind of memory, on some ranks.

    Attributes
    ----------
    seconds : list of list of float
        By repetition, of each rank.
    placed : float or None
        The worst rank's share of pages on the requested nodes; None without a request.
    """

    operation: str
    method: str
    memory: str
    n_ranks: int
    n_nodes: int
    bytes: int
    placed: float | None
    mpi: str
    seconds: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, row: dict[str, Any], report: dict[str, Any]) -> "Measured":
        """Create it from a row of a report, without its seconds."""
        of_all = {key: report[key] for key in ("n_ranks", "n_nodes", "mpi")}
        return cls(**{key: value for key, value in row.items() if key != "seconds"}, **of_all)

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key of rows."""
        return OPERATIONS.index(self.operation), ALL_METHODS.index(self.method), MEMORIES.index(self.memory)

    @property
    def plain(self) -> dict[str, Any]:
        """The columns, and the seconds."""
        seconds = {f"{key}_s": value for key, value in spread(slowest_s(self.seconds)).items()}
        return {
            "environment": environment(),
            "containers": _n_containers(),
            "share_ipc": int(bool(os.environ.get(SHARE_IPC))),
            "repetitions": len(self.seconds),
            **seconds,
            **vars(self),
        }


def environment() -> str:
    """Return the ranks' environment: ``host``, or the number of containers."""
    n = _n_containers()
    return f"{n} container{'s' * (n > 1)}" if n else "host"


def _n_containers() -> int:
    text = os.environ.get(CONTAINERS, "") or "0"
    if not text.isdecimal() or len(text) > 6:
        raise UserError(f"{CONTAINERS} must be a number of containers, got {text!r}; unset it")
    return int(text)


def prepare(out: Path) -> None:
    """Create the folder, or check that its files can be appended to; raise UserError if not."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with Folder.chosen(out) as folder, folder.open(CSV, "ab+") as binary:
            file = TextIOWrapper(binary, "utf-8", "replace", newline="")
            file.seek(0)
            lines = file.read().splitlines(keepends=True)
            if lines and lines[0].rstrip("\r\n") != ",".join(COLUMNS):
                raise UserError(f"{out / CSV} must have this version's columns, got others; give another --out")
            if lines and not lines[-1].endswith("\n"):
                file.write("\r\n")  # ends a truncated row, so that the next one is a line of its own
            if not lines:
                csv.writer(file).writerow(COLUMNS)
            file.flush()
            if folder.holds(HDF5):  # libhdf5 would follow a link
                os.close(folder.open_fd(HDF5, os.O_RDWR))
        _open_figures(out / HDF5)
    except OSError as error:
        raise no_folder(out, error) from None


def _open_figures(path: Path) -> None:
    """Create the HDF5 file, or check that it is intact."""
    existed = path.exists()
    try:
        with h5py.File(path, "a"):
            pass
    except OSError as error:
        if existed:
            raise UserError(f"{path} must be whole to be added to, got ({reason(error)}); give another --out") from None
        raise


def append(out: Path, rows: Sequence[Measured], topology: Topology) -> None:
    """Append rows to both files."""
    plain = [row.plain for row in rows]
    with chosen_file(out / CSV, "a") as file:
        csv.writer(file).writerows([["" if row[key] is None else row[key] for key in COLUMNS] for row in plain])
    with h5py.File(out / HDF5, "a") as file:
        if "command" not in file.attrs:
            file.attrs["command"] = " ".join(["python -m psframe.bench", *sys.argv[1:]])
            file.attrs["mpi"] = rows[0].mpi if rows else ""
            file.attrs["topology"] = json.dumps(machine(topology))
            file.attrs["started"] = time.strftime("%Y-%m-%dT%H:%M:%S")
        for row in plain:
            group = file.create_group(f"{len(file):06d}")
            group.create_dataset("seconds", data=np.array(row["seconds"]))
            group.attrs.update({key: "" if row[key] is None else row[key] for key in COLUMNS})
