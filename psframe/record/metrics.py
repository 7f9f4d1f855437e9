"""Record files of a run (:func:`append`, :func:`read`): JSON lines written by rank 0, each with its epoch.

metrics.jsonl has a line per epoch, steps.jsonl one per step, usage.jsonl one per sample and rank.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from psframe.config import untrusted
from psframe.record import sealed
from psframe.record.folder import Folder

MAX_LINE = 16 << 20  # bytes; a longer line counts as damaged
FILES = ("metrics.jsonl", "steps.jsonl", "usage.jsonl")


def append(run: Path, file: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records to ``run / file`` as lines and sync; non-finite numbers become null."""
    with Folder(run) as folder, folder.open(file, "a") as out:
        for record in records:
            plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
            out.write(json.dumps(plain, allow_nan=False) + "\n")
        out.flush()
        os.fsync(out.fileno())


def read(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return a run's records up to the first damaged line, e.g. one cut short at the end; [] without a file.

    OSError if it cannot be read, is a link or is not a regular file.
    """
    try:
        with Folder(run) as folder, folder.open(file) as opened:
            return list(_whole(opened))
    except FileNotFoundError:
        return []


def _whole(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records up to the first line that is not one."""
    while (line := file.readline(MAX_LINE)).strip():
        try:
            record = untrusted.of_json(line.decode("utf-8", "replace"))
        except ValueError:
            return
        if not isinstance(record, dict) or not isinstance(record.get("epoch"), int):
            return
        yield record


def last_epoch(run: Path) -> int:
    """Return the number of epochs that a run has recorded."""
    return max((record["epoch"] for record in read(run)), default=0)


def cut_back(run: Path, epoch: int) -> None:
    """Drop all lines after ``epoch``, so that a continued run has each epoch once."""
    for file in FILES:
        if os.path.lexists(run / file):
            records = [record for record in read(run, file) if record["epoch"] <= epoch]
            sealed.put(run / file, "".join(json.dumps(record) + "\n" for record in records))
