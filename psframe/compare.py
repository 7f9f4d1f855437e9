"""Command ``python -m psframe.compare CONFIG ... [--grid KEY=VALUE,VALUE ...] [--ranks N,N]``: a comparison of runs.

Every point of the grid (:class:`Point`) is a run under mpirun, as a user would start it, one at a time, and a row of
one table. Repeated runs take turns, so that changes on the machine affect all alike. With the same grid and ``--out``
the command resumes an interrupted comparison.
"""

import csv
import fcntl
import itertools
import json
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.cluster.parser import Parser, no_folder
from psframe.cluster.process import guarded
from psframe.config import strict_yaml, untrusted
from psframe.config.schema import parse_value, spelled
from psframe.errors import UserError
from psframe.record import metrics, summary
from psframe.record.folder import Folder, chosen_file
from psframe.record.view import aligned, in_terminal, say
from psframe.report import make

USAGE = "python -m psframe.compare CONFIG [CONFIG ...] [--grid KEY=VALUE,VALUE ...] [--ranks N,N] [--out DIR]"
EXAMPLE = "python -m psframe.compare config.yaml --grid sync.mode=sync_ps,easgd --ranks 2,4"
GRID = "grid.json"  # the grid of a folder
MAX_GRID = 16 << 20  # bytes


@dataclass(frozen=True)
class Point:
    """One run of the grid: a config, overrides, and a number of ranks."""

    config: str
    overrides: tuple[str, ...]
    n_ranks: int

    @property
    def label(self) -> str:
        """The config's name and the overrides, which tell it from the others."""
        return " ".join([Path(self.config).stem, *self.overrides])

    @property
    def named(self) -> str:
        """The label and the number of ranks."""
        return f"{self.label}, {self.n_ranks} rank{'s' if self.n_ranks > 1 else ''}"

    @property
    def key(self) -> tuple[str, str, int]:
        """A key that is equal for the same run."""
        return str(Path(self.config).resolve()), " ".join(self.overrides), self.n_ranks


def parser() -> Parser:
    cli = Parser(USAGE, "Train a grid of settings, and compare them in one table.", EXAMPLE)
    cli.add_argument("configs", nargs="+", metavar="CONFIG", help="YAML files")
    cli.add_argument(
        "--grid", action="append", default=[], metavar="KEY=VALUE,VALUE", help="as sync.mode=easgd,hogwild"
    )
    cli.add_argument("--ranks", default="4", help="numbers of ranks, as 2,4,8 (default: 4)")
    cli.add_argument("--repeat", type=int, default=1, help="runs of each, in turn (default: 1)")
    cli.add_argument("--target", type=float, help="accuracy to reach (default: the first run's last one, less 0.02)")
    cli.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs, as train.epochs=3")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    cli.add_argument("--out", help="a folder for runs, tables and page, or one to go on in (default: compare-TIME)")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 1 if a run failed."""
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
    points = list(grid(arguments))
    out = Path(arguments.out or time.strftime("compare-%Y%m%d-%H%M%S"))
    with _begun(out, arguments, points):
        try:
            return _compare(arguments, points, out)
        except KeyboardInterrupt:
            print(f"psframe: broken off; the same command with --out {out} goes on", file=sys.stderr)
            raise
        except OSError as error:  # a full disk, or something else in a file's place
            raise no_folder(error.filename or out, error) from None


def grid(arguments: Namespace) -> Iterator[Point]:
    """Yield every run of the grid. Raise UserError if the grid is invalid."""
    mpirun.refuse_ranks("psframe.compare")
    if arguments.repeat < 1:
        raise UserError(f"--repeat must be 1 or more, got {arguments.repeat}; give 1")
    if arguments.target is not None and not 0 <= arguments.target <= 1:
        raise UserError(f"--target must be an accuracy from 0 to 1, got {arguments.target:g}; write, say, 0.88")
    for override in arguments.set:
        if "=" not in override:
            raise UserError(f"--set must be KEY=VALUE, got {override!r}; write, say, --set train.epochs=3")
    for config in arguments.configs:
        if not Path(config).is_file():
            fix = f"give --set {config}" if "=" in config else "check the path"
            raise UserError(f"a config must be a readable file, got {config!r}; {fix}")
    stems = [Path(config).stem for config in arguments.configs]
    if len(set(stems)) < len(stems):
        raise UserError(f"configs must differ in their files' names, got {' '.join(arguments.configs)}; rename one")
    axes = [[f"{key}={spelled(value)}" for value in values] for key, values in map(_axis, arguments.grid)]
    ranks = sweep.counts(arguments.ranks)
    for config, n_ranks, *overrides in itertools.product(arguments.configs, ranks, *axes):
        yield Point(config, tuple(overrides), n_ranks)


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UserError(f"--grid must be KEY=VALUE,VALUE, got {text!r}; write, say, --grid sync.mode=easgd,hogwild")
    return key, parse_value(f"[{values}]")


def _begun(out: Path, arguments: Namespace, points: Sequence[Point]) -> TextIO:
    """Create the folder, or reopen one of the same grid; return its lock, which holds until it is closed."""
    grid = {"runs": [[*point.key] for point in points], "repeat": arguments.repeat, "set": arguments.set}
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


def _compare(arguments: Namespace, points: Sequence[Point], out: Path) -> int:
    start = mpirun.launcher(arguments.mpirun)
    curves: dict[Point, list[list[dict[str, Any]]]] = {point: [] for point in points}
    failed: dict[Point, list[str]] = {}
    runs = [(number, point) for number, point in enumerate([*points] * arguments.repeat, start=1)]
    left = Left(len(runs))
    for number, point in runs:
        folder = out / "runs" / f"{number:03d}"
        records, complaint = _finished(folder), ""
        again = " (done before)" if records else ""
        say(f"[{number}/{len(runs)}] {point.named}{again}{left.described()}")
        if not records:
            overrides = [*arguments.set, *point.overrides]
            records, complaint = sweep.train(start, point.n_ranks, point.config, overrides, folder)
        left.passed(bool(again))
        if complaint:
            failed.setdefault(point, []).append(complaint)
            say(f"  failed: {complaint}")
        else:
            curves[point].append(records)
            say(f"  {summary.told(summary.row(records, 1.0))}")
        # after every run, so that an interrupted comparison has tables, too
        _report(arguments, curves, failed, out, number == len(runs))
    left.close()
    return 1 if failed else 0


class Left:
    """Number and estimated time of the runs left of ``n``: a bar in a terminal, words elsewhere."""

    def __init__(self, n: int):
        self.n, self.n_run, self.spent_s, self.began = n, 0, 0.0, time.monotonic()
        self.bar: Any = None
        if in_terminal():
            from tqdm import tqdm

            self.bar = tqdm(total=n, unit="run", leave=False, file=sys.stderr)

    def passed(self, before: bool) -> None:
        """Count a run that has ended: now, or ``before`` this command."""
        now = time.monotonic()
        self.n -= 1
        if not before:
            self.n_run, self.spent_s = self.n_run + 1, self.spent_s + now - self.began
        self.began = now
        if self.bar is not None:
            self.bar.update()

    def described(self) -> str:
        """Return the estimate; '' before the first run has ended."""
        if not self.n_run:
            return ""
        seconds = round(self.n * self.spent_s / self.n_run)
        return f"; about {seconds // 60} min {seconds % 60} s left" if seconds >= 60 else f"; about {seconds} s left"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _finished(where: Path) -> list[dict[str, Any]]:
    """Return the records of a finished run; delete an unfinished one, and return []."""
    for config in where.glob("*/config.yaml"):
        try:
            records = metrics.read(config.parent)
            epochs = strict_yaml.load(untrusted.text(config, untrusted.CONFIG_BYTES), "config.yaml")["train"]["epochs"]
            if records and records[-1]["epoch"] == epochs:
                summary.row(records, 1.0)  # raises if a value of the tables is missing
                return records
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, UserError):
            pass  # damaged: run it again
    if where.is_symlink():
        where.unlink()  # it would redirect the run to another folder
    shutil.rmtree(where, ignore_errors=True)
    return []


def _report(
    arguments: Namespace,
    curves: dict[Point, list[list[dict[str, Any]]]],
    failed: dict[Point, list[str]],
    out: Path,
    last: bool,
) -> None:
    """Write the tables of the runs so far; the last time print them, and write the page."""
    done = {point: runs for point, runs in curves.items() if runs}
    if not done:
        return
    first = next(iter(done.values()))[0][-1]
    target = first["accuracy"] - 0.02 if arguments.target is None else arguments.target
    rows = {p: summary.middle([summary.row(records, target) for records in runs]) for p, runs in done.items()}
    table = summary.cells(
        [(point.label, row) for point, row in rows.items()],
        [(point.label, point.n_ranks) for point in failed if point not in rows],
        arguments.repeat > 1,
    )
    with chosen_file(out / "compare.csv", "w") as file:
        writer = csv.writer(file)
        keys = list(next(iter(rows.values())))
        writer.writerow(["run", *keys])
        writer.writerows([[point.label, *(row[key] for key in keys)] for point, row in rows.items()])
    lines = [" | ".join(cells) for cells in table]
    lines.insert(1, " | ".join(["---"] * len(table[0])))
    note = "\n".join([*summary.notes(list(rows.values()), target), *_failures(failed, arguments.repeat)])
    with chosen_file(out / "compare.md", "w") as file:
        file.write("".join(f"| {line} |\n" for line in lines) + f"\n{note}\n")
    if last:
        page, _ = make.report([str(out)])
        with chosen_file(out / "report.html", "w") as file:
            file.write(page)
        say(f"\n{aligned(table)}\n\n{note}\n{out / 'compare.md'}, compare.csv, report.html")


def _failures(failed: dict[Point, list[str]], repeat: int) -> Iterator[str]:
    """Yield a line for each point with a failed run, with the last reason."""
    for point, why in failed.items():
        times = f" ({len(why)} of {repeat} runs)" if repeat > 1 else ""
        yield f"failed: {point.named}{times}: {why[-1]}"


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
