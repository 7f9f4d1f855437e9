"""Reader of the tables of ``bench collectives``, line by line (:func:`read`)."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psframe.config import untrusted_hdf5
from psframe.report.read import contents
from psframe.report.values import Spread, number, parsed, table_of, text

OPERATIONS = ("bcast", "gather", "allreduce")
METHODS = ("c", "buffer", "object", "shared", "shared_copy")


@dataclass(frozen=True)
class Row:
    """A measurement: the call, its environment, and the slowest rank's seconds."""

    containers: int
    share_ipc: bool
    operation: str
    method: str
    memory: str
    n_ranks: int
    n_bytes: float
    seconds: Spread
    mode: str = ""  #: the machine's cluster mode

    @property
    def environment(self) -> tuple[int, bool]:
        return self.containers, self.share_ipc


def environment(of: tuple[int, bool]) -> str:
    """Return an environment's name."""
    containers, share_ipc = of
    if not containers:
        return "host"
    name = "1 container" if containers == 1 else f"{containers} containers"
    return f"{name}, shared IPC" if share_ipc else name


def read(folders: Sequence[Path], notices: list[str]) -> tuple[list[Row], list[str]]:
    """Return the rows of all folders, and a line for each machine.

    Of repeated measurements the last one counts.
    """
    rows: dict[tuple[object, ...], Row] = {}
    machines: list[str] = []
    for folder in folders:
        content = contents(folder / "collectives.csv", notices)
        machine, mode = _machine(folder, notices)
        damaged = 0
        columns, *lines = [_cells(line) for line in content.splitlines() if line.strip()] or [[]]
        for cells in lines:
            line = dict(zip(columns, cells, strict=False))
            # more or fewer cells than columns: truncated, or two in one
            row = _row(line, mode) if len(cells) == len(columns) else None
            if row is None:
                damaged += 1
                continue
            rows[row.environment, row.operation, row.method, row.memory, row.n_ranks, row.n_bytes, mode] = row
            machine = machine or text(line.get("mpi"))
        if damaged:
            notices.append(f"{text(str(folder / 'collectives.csv'), 200)}: {damaged} damaged line(s) are left out")
        machines += [machine] if machine and machine not in machines else []
    measured = list(rows.values())
    if len({row.mode for row in measured if row.mode}) < 2:
        measured = [replace(row, mode="") for row in measured]
    return measured, machines


def _cells(line: str) -> list[str]:
    """Return the cells of one line, within which an unclosed quote ends; none of what is no line of a table."""
    try:
        return next(csv.reader([line.replace("\0", "?")]), [])  # csv rejects a NUL
    except csv.Error:  # a cell beyond all measure
        return []


def _row(line: Mapping[str, Any], mode: str) -> Row | None:
    containers, share, ranks = (parsed(line.get(key)) for key in ("containers", "share_ipc", "n_ranks"))
    n_bytes, middle, low, high = (parsed(line.get(key)) for key in ("bytes", "median_s", "low_s", "high_s"))
    operation, method, memory = (text(line.get(key), 24) for key in ("operation", "method", "memory"))
    if operation not in OPERATIONS or not method or not memory:
        return None
    if containers is None or not 0 <= containers <= 1000:
        return None
    if not ranks or not 1 <= ranks <= 1e6 or not n_bytes or n_bytes < 0 or not middle or middle < 0:
        return None
    low, high = min(middle, low or middle), max(middle, high or middle)
    seconds = (middle, max(low, middle / 1e6), high)
    return Row(int(containers), bool(share), operation, method, memory, int(ranks), n_bytes, seconds, mode)


def _machine(folder: Path, notices: list[str]) -> tuple[str, str]:
    """Return one line on the machine from collectives.h5, and its cluster mode."""
    path = folder / "collectives.h5"
    if not path.exists():
        return "", ""
    if path.is_symlink():
        notices.append(f"{text(str(path), 200)} is a link, and is not followed: the machine is not known")
        return "", ""
    try:
        with untrusted_hdf5.opened(path) as file:
            attributes = {key: untrusted_hdf5.attribute(file, key) for key in ("topology", "mpi", "started")}
        texts = {key: str(value) for key, value in attributes.items() if value is not None}
        topology = table_of(json.loads(texts.get("topology", "{}")))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        notices.append(f"{text(str(path), 200)} is damaged: the machine is not known")
        return "", ""
    topology = table_of(topology.get("topology")) or topology
    cores, mode = number(topology.get("n_cores"), 1), text(topology.get("cluster_mode"), 12)
    core_text = f"{cores:.0f} cores" if cores else ""
    words = (text(topology.get("cpu")), core_text, mode, text(texts.get("mpi"), 60), text(texts.get("started"), 19))
    return ", ".join(word for word in words if word), mode
