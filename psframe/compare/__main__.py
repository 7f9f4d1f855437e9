"""Command ``psframe compare CONFIG ... --grid KEY=VALUE,VALUE --ranks N,N`` (:func:`main`): a comparison of runs.

Every point of the grid is a run, and a row of one table: under mpirun, as a user would start it, one at a time, or on
virtual ranks, as many at a time as there are cores. Repeated runs take turns, so that changes on the machine affect all
alike. With the same grid and ``--out`` the command resumes an interrupted comparison.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psframe.cluster import mpirun
from psframe.cluster.parser import Parser, no_folder
from psframe.cluster.process import guarded
from psframe.compare import folder as folders
from psframe.compare import grid, tables, ways
from psframe.compare.grid import Point
from psframe.compare.ways import Asked, Way
from psframe.record import summary
from psframe.record.left import Left
from psframe.record.view import say
from psframe.virtual import options

USAGE = (
    "python -m psframe.compare CONFIG [CONFIG ...] [--grid KEY=VALUE,VALUE ...] [--ranks N,N] "
    "[--simulate --machine NAME] [--out DIR]"
)
EXAMPLE = "python -m psframe.compare config.yaml --grid sync.mode=sync_ps,easgd --ranks 2,4"


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
    cli.add_argument("--simulate", action="store_true", help="train on virtual ranks, in the time of --machine")
    options.add(cli)
    cli.add_argument("--out", help="a folder for runs, tables and page, or one to go on in (default: compare-TIME)")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 1 if a run failed."""
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
    points = list(grid.points(arguments))
    options.check(arguments, arguments.simulate)
    way = ways.virtually(arguments) if arguments.simulate else ways.really(arguments)
    out = Path(arguments.out or time.strftime("compare-%Y%m%d-%H%M%S"))
    with folders.begun(out, arguments, points):
        try:
            return _compare(arguments, points, way, out)
        except KeyboardInterrupt:
            print(f"psframe: broken off; the same command with --out {out} goes on", file=sys.stderr)
            raise
        except OSError as error:  # a full disk, or something else in a file's place
            raise no_folder(error.filename or out, error) from None


def _compare(arguments: Namespace, points: Sequence[Point], way: Way, out: Path) -> int:
    curves: dict[Point, list[list[dict[str, Any]]]] = {point: [] for point in points}
    failed: dict[Point, list[str]] = {}
    runs = [
        Asked(point, repeat, out / "runs" / f"{repeat * len(points) + number:03d}")
        for repeat in range(arguments.repeat)
        for number, point in enumerate(points, start=1)
    ]
    left = Left(len(runs))
    for first in range(0, len(runs), way.at_once):
        group = runs[first : first + way.at_once]
        before = [folders.finished(run.folder) for run in group]
        for number, (run, records) in enumerate(zip(group, before, strict=True), start=first + 1):
            again = " (done before)" if records else ""
            say(f"[{number}/{len(runs)}] {run.point.named}{again}{left.described()}")
        answers = iter(way.train([run for run, records in zip(group, before, strict=True) if not records]))
        for run, records in zip(group, before, strict=True):
            found, complaint = (records, "") if records else next(answers)
            left.passed(bool(records))
            if complaint:
                failed.setdefault(run.point, []).append(complaint)
                say(f"  failed: {complaint}")
            else:
                curves[run.point].append(found)
                say(f"  {summary.told(summary.row(found, 1.0))}")
        # each time, so that an interrupted comparison has tables, too
        tables.write(arguments, curves, failed, out, group[-1] is runs[-1])
    left.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
