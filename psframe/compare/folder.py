"""Folder of a comparison (:func:`begun`): one at a time writes there, and the same one may go on."""

import fcntl
import json
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from psframe.cluster.parser import no_folder
from psframe.compare.grid import Point
from psframe.config import strict_yaml, untrusted
from psframe.errors import UserError
from psframe.record import metrics, stopped, summary
from psframe.record.folder import Folder
from psframe.virtual import options

GRID = "grid.json"  # the grid of a folder
MAX_GRID = 16 << 20  # bytes


def begun(out: Path, arguments: Namespace, points: Sequence[Point]) -> TextIO:
    """Create the folder, or reopen one of the same grid; return its lock, which holds until it is closed."""
    grid: dict[str, Any] = {"runs": [[*point.key] for point in points], "repeat": arguments.repeat}
    grid |= {"set": arguments.set, **({"simulate": options.given(arguments)} if arguments.simulate else {})}
    try:
        held = sorted(path.name for path in out.iterdir()) if out.exists() else []
        if held and GRID not in held:
            raise UserError(
                f"--out must be a new or empty folder, got {str(out)!r}, which holds {held[0]}; give another"
            )
        out.mkdir(parents=True, exist_ok=True)
        with Folder.chosen(out) as folder:
            lock: TextIO = folder.open("lock", "a")
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held and _grid_of(folder) != grid:
                raise UserError(
                    f"--out must be new, or of the same grid, got {str(out)!r}, begun with another; give another"
                )
            with folder.open(GRID, "w") as file:
                file.write(json.dumps(grid) + "\n")
            folder.enter("runs", make=True)
    except BlockingIOError:
        raise UserError(f"a folder takes one comparison at a time, got {str(out)!r}, in which one runs; wait") from None
    except OSError as error:
        raise no_folder(out, error) from None
    return lock


def _grid_of(folder: Folder) -> Any:
    """Return the grid of a folder; None if that is damaged, and so equal to no grid."""
    try:
        with folder.open(GRID) as file:
            return untrusted.of_json(untrusted.all_of(file, MAX_GRID, folder.path / GRID))
    except ValueError:
        return None


def finished(where: Path) -> list[dict[str, Any]]:
    """Return the records of a finished run; delete an unfinished one, and return []."""
    for config in where.glob("*/config.yaml"):
        try:
            records = metrics.read(config.parent)
            epochs = strict_yaml.load(untrusted.text(config, untrusted.CONFIG_BYTES), "config.yaml")["train"]["epochs"]
            if records and (records[-1]["epoch"] == epochs or stopped.is_marked(config.parent)):
                summary.row(records, 1.0)  # raises if a value of the tables is missing
                return records
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, UserError):
            pass  # damaged: run it again
    if where.is_symlink():
        where.unlink()  # it would redirect the run to another folder
    shutil.rmtree(where, ignore_errors=True)
    return []
