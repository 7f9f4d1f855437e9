"""``python -m psframe.compare CONFIG ... [--grid KEY=VALUE,VALUE ...] [--ranks N,N]``: trains all of it, in one table.

Every point of the grid is a run of its own under mpirun, as a user would start it. Repeated runs go round in turn, so
that what changes on the machine meanwhile meets them all.
"""

import csv
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psframe.config import parse_value
from psframe.errors import UserError, reason
from psframe.parser import Parser
from psframe.record import figure, metrics, summary
from psframe.record.view import aligned, say

USAGE = "python -m psframe.compare CONFIG [CONFIG ...] [--grid KEY=VALUE,VALUE ...] [--ranks N,N] [--out DIR]"
LAUNCHED = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # set by launchers in every rank


@dataclass(frozen=True)
class Point:
    """One run of the grid: a config, overrides, and a number of ranks."""

    config: str
    overrides: tuple[str, ...]
    n_ranks: int

    @property
    def label(self) -> str:
        """What tells it from the others."""
        return " ".join([Path(self.config).stem, *self.overrides])


def _short(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def parser() -> Parser:
    made = Parser(USAGE, "Train what a grid of configs says, and compare.")
    made.add_argument("configs", nargs="+", metavar="CONFIG", help="YAML files")
    made.add_argument(
        "--grid", action="append", default=[], metavar="KEY=VALUE,VALUE", help="as sync.mode=easgd,hogwild"
    )
    made.add_argument("--ranks", default="4", help="numbers of ranks, as 2,4,8 (default: 4)")
    made.add_argument("--repeat", type=int, default=1, help="runs of each, in turn (default: 1)")
    made.add_argument("--target", type=float, help="accuracy to reach (default: the first run's last one, less 0.02)")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs, as train.epochs=3")
    made.add_argument("--mpirun", help="the launcher and its flags, as 'mpirun --oversubscribe' (default: mpirun)")
    made.add_argument("--out", help="a new folder for runs, tables and figure (default: compare-TIME)")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 1 where a run failed, 2 for a mistake in the command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run that goes on ends too, as with Ctrl-C
    try:
        made = parser()
        if "-h" in argv or "--help" in argv:
            say(made.format_help())
            return 0
        arguments = made.parse_args(list(argv))
        points = list(grid(arguments))
        out = _folder(arguments.out or time.strftime("compare-%Y%m%d-%H%M%S"))
        return _compare(arguments, points, out)
    except UserError as error:
        print(f"psframe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def grid(arguments: Namespace) -> Iterator[Point]:
    """Yield every run of the grid. UserError where it is none."""
    launched = [name for name in LAUNCHED if name in os.environ]
    if launched:
        raise UserError(f"psframe.compare starts mpirun itself, got started under one ({launched[0]}); start it alone")
    if arguments.repeat < 1:
        raise UserError(f"--repeat must be 1 or more, got {arguments.repeat}; give 1")
    if arguments.target is not None and not 0 <= arguments.target <= 1:
        raise UserError(f"--target must be an accuracy from 0 to 1, got {arguments.target:g}; write, say, 0.88")
    for override in arguments.set:
        if "=" not in override:
            raise UserError(f"--set must be KEY=VALUE, got {override!r}; write, say, --set train.epochs=3")
    for config in arguments.configs:
        if not Path(config).is_file():
            raise UserError(f"a config must be a readable file, got {config!r}; check the path")
    stems = [Path(config).stem for config in arguments.configs]
    if len(set(stems)) < len(stems):
        raise UserError(f"configs must differ in their files' names, got {' '.join(arguments.configs)}; rename one")
    axes = [[f"{key}={_short(value)}" for value in values] for key, values in map(_axis, arguments.grid)]
    ranks = _axis(f"--ranks={arguments.ranks}")[1]
    if not all(isinstance(n, int) and n > 0 for n in ranks):
        raise UserError(f"--ranks must be whole numbers of 1 or more, got {arguments.ranks!r}; write, say, --ranks 2,4")
    for config, n_ranks, *overrides in itertools.product(arguments.configs, ranks, *axes):
        yield Point(config, tuple(overrides), n_ranks)


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UserError(f"--grid must be KEY=VALUE,VALUE, got {text!r}; write, say, --grid sync.mode=easgd,hogwild")
    return key, parse_value(f"[{values}]")


def _folder(name: str) -> Path:
    out = Path(name)
    try:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"--out must be a new or empty folder, got {name!r}, which holds something; give another")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out must be a folder that can be written, got {name!r} ({reason(error)}); give another"
        ) from None
    return out


def _compare(arguments: Namespace, points: Sequence[Point], out: Path) -> int:
    launcher = (arguments.mpirun or _mpirun()).split()
    curves: dict[Point, list[list[dict[str, Any]]]] = {point: [] for point in points}
    failed: dict[Point, str] = {}
    number = 0
    for _ in range(arguments.repeat):
        for point in points:
            number += 1
            say(f"[{number}/{arguments.repeat * len(points)}] {point.label}, {point.n_ranks} ranks")
            records, complaint = train(point, launcher, arguments.set, out / "runs" / f"{number:03d}")
            if complaint:
                failed[point] = complaint
                say(f"  failed: {complaint}")
            else:
                curves[point].append(records)
                say(f"  {records[-1]['epoch_s']:.2f} s an epoch, accuracy {records[-1]['accuracy']:.2%}")
            # after every run, so that what is done is told of one that is broken off
            last = number == arguments.repeat * len(points)
            _report(arguments, curves, failed, out, last)
    return 1 if failed else 0


def train(
    point: Point, launcher: Sequence[str], common: Sequence[str], where: Path
) -> tuple[list[dict[str, Any]], str]:
    """Run one point below ``where``; return its records, and what went wrong, if anything did."""
    overrides = [*common, *point.overrides, f"record.dir={where}"]
    command = [*launcher, "-n", str(point.n_ranks), sys.executable, "-m", "psframe.train", point.config, "--quiet"]
    try:
        process = subprocess.Popen([*command, *overrides], stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        raise UserError(
            f"--mpirun must be a launcher, got {' '.join(launcher)!r} ({reason(error)}); give another"
        ) from None
    try:
        _, said = process.communicate()
    except BaseException:  # Ctrl-C: mpirun ends its ranks
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        told = [line.removeprefix("psframe: ") for line in lines if line.startswith("psframe: ")]
        return [], (told or lines or [f"exit status {process.returncode}"])[0]
    (run,) = where.iterdir()
    return metrics.read(run), ""


def _mpirun() -> str:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        raise UserError("an mpirun must be on PATH, got none; pip install mpich, or give --mpirun")
    return found


def _report(
    arguments: Namespace,
    curves: dict[Point, list[list[dict[str, Any]]]],
    failed: dict[Point, str],
    out: Path,
    last: bool,
) -> None:
    """Write the tables and the figure of what there is; print the table when it is the last time."""
    done = {point: runs for point, runs in curves.items() if runs}
    if not done:
        return
    first = next(iter(done.values()))[0][-1]
    target = first["accuracy"] - 0.02 if arguments.target is None else arguments.target
    rows = {p: summary.middle([summary.row(records, target) for records in runs]) for p, runs in done.items()}
    shown = _cells(rows, failed)
    with open(out / "compare.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        keys = list(next(iter(rows.values())))
        writer.writerow(["run", *keys])
        writer.writerows([[point.label, *(found[key] for key in keys)] for point, found in rows.items()])
    lines = [" | ".join(cells) for cells in shown]
    lines.insert(1, " | ".join(["---"] * len(shown[0])))
    note = f"target accuracy {target:.2%}; seconds and bytes are an epoch's, medians; accuracy after the last one"
    note += "".join(f"\nfailed: {point.label}, {point.n_ranks} ranks: {why}" for point, why in failed.items())
    (out / "compare.md").write_text("".join(f"| {line} |\n" for line in lines) + f"\n{note}\n", encoding="utf-8")
    labels = {f"{p.label}, {p.n_ranks} ranks": runs for p, runs in done.items()}
    drawn = figure.curves(out / "compare.svg", labels, target)
    if last:
        say(f"\n{aligned(shown)}\n\n{note}\n{out / 'compare.md'}, compare.csv{', compare.svg' if drawn else ''}")
        if not drawn:
            say("no figure: it needs matplotlib; pip install matplotlib")


def _cells(rows: dict[Point, dict[str, Any]], failed: dict[Point, str]) -> list[list[str]]:
    several = any(found["n_runs"] > 1 for found in rows.values())
    head = ["run", *(heading for heading, _, _ in summary.COLUMNS), *(["from", "to"] if several else [])]
    columns = [(key, form) for _, key, form in summary.COLUMNS] + ([("low", ".2f"), ("high", ".2f")] if several else [])
    cells = [head]
    for point, found in rows.items():
        values = [(found[key], form) for key, form in columns]
        cells.append([point.label, *("-" if v is None else format(_whole(v, form), form) for v, form in values)])
    for point in failed:
        cells.append([point.label, str(point.n_ranks), "failed", *[""] * (len(head) - 3)])
    return cells


def _whole(value: Any, form: str) -> Any:
    return round(value) if form == "d" else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
