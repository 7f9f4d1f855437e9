"""Text format ``.ts`` (:func:`read_ts`): lines ``@key value``, then ``v,v,...:v,v,...:label``, a colon per channel."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psframe.config import untrusted
from psframe.datasets import files
from psframe.errors import UserError

MAX_LINE = 16 << 20  # bytes


def read_ts(file: Path) -> tuple[np.ndarray, list[str], list[str]]:
    """Read a file of sequences of equal length.

    Returns
    -------
    samples : ndarray
        float32 (n, C, T).
    labels : list of str
        One per sample.
    classes : list of str
        Classes that the header's ``@classLabel`` declares.

    Raises
    ------
    UserError
        The file has no class labels, has time stamps or missing values, or its lines differ from its header.
    """
    with files.reading(file, "a .ts text file", ValueError), untrusted.opened(file) as opened:
        return _read(file, _lines(opened))


def _lines(opened: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) one at a time: a list of all lines would need many times the file's size."""
    for number in count(1):
        line = opened.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE:
            raise ValueError(f"a line of more than {MAX_LINE:,} bytes")
        yield number, line.decode("utf-8").strip()


def _read(file: Path, lines: Iterator[tuple[int, str]]) -> tuple[np.ndarray, list[str], list[str]]:
    header = _header(file, lines)
    declared = header.get("classlabel", "").split()
    if len(declared) < 2 or declared[0].lower() != "true" or header.get("timestamps", "false").lower() != "false":
        raise UserError(
            f"{file} must declare '@classLabel true NAME ...' and no time stamps, got '@classLabel "
            f"{' '.join(declared)}', '@timeStamps {header.get('timestamps', 'false')}'; convert it"
        )
    with files.reading(file, "a .ts file whose @dimensions and @seriesLength are integers", ValueError):
        sizes = [int(header[key]) for key in ("dimensions", "serieslength") if key in header]
    want = tuple(sizes) if len(sizes) == 2 else None
    samples, labels = bytearray(), []
    names: dict[str, str] = {}  # so that equal labels are one string
    for number, line in lines:
        if not line or line.startswith("#"):
            continue
        *channels, label = line.split(":")
        with files.reading(file, f"plain numbers and a label at line {number}", ValueError):
            sample = np.array([channel.split(",") for channel in channels], np.float32)
        want = want or sample.shape
        if sample.ndim != 2 or sample.shape != want:
            raise UserError(
                f"{file} must have (channels, time) = {want} in every line, got {sample.shape} at line {number}; "
                "fetch it again if it is truncated, or pad its sequences to equal length"
            )
        samples += sample.tobytes()
        labels.append(names.setdefault(label.strip(), label.strip()))
    if want is None or not labels:
        raise UserError(f"{file} must have at least one line behind @data, got none; fetch it again")
    return np.frombuffer(samples, np.float32).reshape(-1, *want), labels, declared[1:]


def _header(file: Path, lines: Iterator[tuple[int, str]]) -> dict[str, str]:
    """Return the header, keys in lower case; afterwards ``lines`` continues after ``@data``."""
    header: dict[str, str] = {}
    number = 0
    for number, line in lines:  # noqa: B007 - the last one is told
        if line.lower() == "@data":
            return header
        if line.startswith("@"):
            key, _, value = line[1:].partition(" ")
            header[key.lower()] = value.strip()
    raise UserError(f"{file} must have a line @data, got none in {number} lines; give a .ts file")
