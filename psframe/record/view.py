"""Terminal output of a run: a progress bar and a line per epoch (:class:`View`), a table after it (:func:`table`)."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.record.log import LOG

COLUMNS = (  # heading, key, format
    ("epoch", "epoch", "d"),
    ("seconds", "epoch_s", ".2f"),
    ("compute", "compute_s", ".2f"),
    ("exchange", "exchange_s", ".2f"),
    ("update", "update_s", ".2f"),
    ("wait", "wait_s", ".2f"),
    ("samples/s", "samples_per_s", ",.0f"),
    ("loss", "loss", ".4f"),
    ("accuracy", "accuracy", ".2%"),
)


def say(text: str) -> None:
    """Print to stdout; if it is closed or full, discard this and later output, so that training goes on."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for Python's buffered and later output
        os.close(nowhere)


def tell(text: str, quiet: bool) -> None:
    """Print a fact to stdout unless ``quiet``, and log it."""
    LOG.info(text, extra={"told": not quiet, "of": text})
    if not quiet:
        say(text)


class View:
    """Progress of a run on rank 0: a line per epoch on stdout, a tqdm bar on a terminal's stderr; none if ``quiet``."""

    def __init__(self, epochs: int, n_steps: int, quiet: bool):
        self.epochs, self.n_steps, self.quiet = epochs, n_steps, quiet
        self.bar: Any = None

    def begin(self, epoch: int) -> None:
        if not self.quiet and in_terminal():
            from tqdm import tqdm

            name = f"epoch {epoch}/{self.epochs}"
            # mpirun puts a pipe between a rank and the terminal, which hides the terminal's width
            width = None if sys.stderr.isatty() else 80
            self.bar = tqdm(total=self.n_steps, desc=name, unit="step", leave=False, ncols=width, file=sys.stderr)

    def step(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def end(self, record: Mapping[str, Any]) -> None:
        self.close()
        values = record.get("metrics", {}).items()
        more = "".join(f", {label} {_cell(v, '.4f')}" for label, v in values if not isinstance(v, list))
        line = (
            f"epoch {record['epoch']}/{self.epochs}: {record['epoch_s']:.2f} s, {record['samples_per_s']:,.0f} "
            f"samples/s, loss {_cell(record['loss'], '.4f')}, accuracy {record['accuracy']:.2%}{more}"
        )
        tell(line, self.quiet)


def in_terminal() -> bool:
    """Return True if this process's stderr ends in a terminal, its own or that of its mpirun."""
    if sys.stderr.isatty():
        return True
    pid = os.getppid()
    for _ in range(8):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name.startswith(("mpirun", "mpiexec", "prterun")):
                return os.readlink(f"/proc/{pid}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the epochs as a table; a missing or NaN number shows as ``-``."""
    rows = [[heading for heading, _, _ in COLUMNS]]
    for record in records:
        rows.append([_cell(record.get(key), form) for _, key, form in COLUMNS])
    head, *lines = aligned(rows).splitlines()
    return "\n".join([head, "-" * len(head), *lines])


def pages_table(record: Mapping[str, Any]) -> str:
    """Return a table of each role's pages by NUMA node; ``placed`` is the worst rank's share on requested nodes."""
    rows = [["role", "placement", "pages by NUMA node", "placed"]]
    for role, pages in ((role, record["pages"][role]) for role in record["placement"] if role in record["pages"]):
        places = ", ".join(f"{node}: {n:,}" for node, n in pages.items())
        rows.append([role, record["placement"][role], places, _cell(record["placed"].get(role), ".1%")])
    return aligned(rows, str.ljust)


def aligned(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.rjust) -> str:
    """Return rows of cells as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(align(c, w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cell(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) and value == value else "-"
