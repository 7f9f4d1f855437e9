"""The ``.ts`` text format: a header of ``@key value`` lines, then ``v,v,...:v,v,...:label``, a channel a colon."""

from pathlib import Path

import numpy as np

from psframe.datasets import files
from psframe.errors import UserError


def read_ts(file: Path) -> tuple[np.ndarray, list[str], list[str]]:
    """Read a file of sequences of equal length.

    Returns
    -------
    samples : ndarray
        float32 (n, C, T).
    labels : list of str
        One a sample.
    classes : list of str
        As the header's ``@classLabel`` declares them.

    Raises
    ------
    UserError
        The file has no class labels, has time stamps or missing values, or its lines differ from its header.
    """
    with files.reading(file, "a .ts text file", ValueError):
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    header, data = _parts(file, lines)
    declared = header.get("classlabel", "").split()
    if len(declared) < 2 or declared[0].lower() != "true" or header.get("timestamps", "false").lower() != "false":
        raise UserError(
            f"{file} must declare '@classLabel true NAME ...' and no time stamps, got '@classLabel "
            f"{' '.join(declared)}', '@timeStamps {header.get('timestamps', 'false')}'; convert it"
        )
    with files.reading(file, "a .ts file whose @dimensions and @seriesLength are integers", ValueError):
        sizes = [int(header[key]) for key in ("dimensions", "serieslength") if key in header]
    want = tuple(sizes) if len(sizes) == 2 else None
    samples, labels = [], []
    for number, line in data:
        *channels, label = line.split(":")
        with files.reading(file, f"plain numbers and a label at line {number}", ValueError):
            sample = np.array([channel.split(",") for channel in channels], np.float32)
        want = want or sample.shape
        if sample.ndim != 2 or sample.shape != want:
            raise UserError(
                f"{file} must have (channels, time) = {want} in every line, got {sample.shape} at line {number}; "
                "fetch it again if it is truncated, or pad its sequences to equal length"
            )
        samples.append(sample)
        labels.append(label.strip())
    if not samples:
        raise UserError(f"{file} must have at least one line behind @data, got none; fetch it again")
    return np.stack(samples), labels, declared[1:]


def _parts(file: Path, lines: list[str]) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Return the header, keys in lower case, and the numbered lines behind ``@data``."""
    header: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.lower() == "@data":
            rest = enumerate(lines[number:], number + 1)
            return header, [(n, text) for n, text in rest if text and not text.startswith("#")]
        if line.startswith("@"):
            key, _, value = line[1:].partition(" ")
            header[key.lower()] = value.strip()
    raise UserError(f"{file} must have a line @data, got none in {len(lines)} lines; give a .ts file")
