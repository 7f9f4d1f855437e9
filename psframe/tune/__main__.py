"""Command ``psframe tune CONFIG`` (:func:`main`): race the ways to train a config on this machine, keep the fastest."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.cluster.parser import Parser, no_folder
from psframe.cluster.process import guarded
from psframe.config import untrusted
from psframe.errors import UserError
from psframe.predict import measure
from psframe.record.view import say
from psframe.tune import space, written
from psframe.tune.jobs import Jobs
from psframe.tune.journal import Journal
from psframe.tune.search import Request, Search
from psframe.tune.way import Way

USAGE = "psframe tune CONFIG [key.path=value ...] [--ranks N,N] [--budget 10m] [--vary KEY[=V,V]] [--out DIR]"
EXAMPLE = "psframe tune config.yaml --ranks 4,8 --budget 5m"
GOALS = ("epoch_s", "samples_per_s")


def parser() -> Parser:
    cli = Parser(
        USAGE, "Find the fastest way to train a config on this machine, by training stretches in turn.", EXAMPLE
    )
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as train.batch_size=128")
    cli.add_argument("--ranks", help="numbers of ranks; the first tells the global batch (default: by the cores)")
    cli.add_argument("--budget", default="10m", help="most time to take, as 90s, 10m or 1h (default: 10m)")
    cli.add_argument("--for", dest="goal", choices=GOALS, default=GOALS[0], help="figure to print (default: epoch_s)")
    cli.add_argument("--vary", action="append", default=[], metavar="KEY[=V,V]",
                     help=f"open a key that the config sets, or narrow one: {', '.join(space.KNOBS)}, all")  # fmt: skip
    cli.add_argument("--mpirun", help=mpirun.HELP)
    cli.add_argument("--out", help="a folder for tuned.yaml, or one to go on in (default: tune-TIME)")
    return cli


def seconds(text: str) -> float:
    """Return the seconds of a ``--budget``, as 90s, 10m or 1h; raise UserError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})(s|m|h)", text)
    if not match or not int(match[1]):
        raise UserError(f"--budget must be a time as 90s, 10m or 1h, got {text!r}; write one of these")
    return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    cli = parser()
    arguments = cli.parse_intermixed_args(list(argv))
    if arguments.help:
        say(cli.format_help())
        return 0
    if arguments.config is None:
        cli.error("it names no config")
    mpirun.refuse_ranks("psframe tune")
    budget_s, vary = seconds(arguments.budget), space.varied(arguments.vary)
    ranks = sweep.counts(arguments.ranks) if arguments.ranks else []
    text = _text(arguments.config)
    start = mpirun.launcher(arguments.mpirun)
    out = Path(arguments.out or time.strftime("tune-%Y%m%d-%H%M%S"))
    request = Request(ranks, vary)
    asked = {"config": text, "overrides": arguments.overrides, "ranks": ranks, "vary": vary, "mpirun": start}
    journal = Journal(out, asked)
    jobs = Jobs(start, arguments.config, arguments.overrides)
    try:
        search = Search(request, ranks[0] if ranks else measure.n_cores(), _asking(journal, jobs), jobs.drop,
                        lambda: budget_s - journal.elapsed_s, _tell)  # fmt: skip
        concluded = search.run()
    except KeyboardInterrupt:
        print(f"psframe: broken off; the same command with --out {out} goes on", file=sys.stderr)
        raise
    finally:
        jobs.close()
        journal.close()
    try:
        written.write(search, concluded, arguments.config, arguments.overrides, out)
        written.keep(search, concluded)
    except OSError as error:
        raise no_folder(error.filename or out, error) from None
    say(written.text(search, concluded, arguments.goal, out, journal.elapsed_s))
    return 0


def _text(path: str) -> str:
    try:
        return untrusted.text(path, untrusted.CONFIG_BYTES)
    except (OSError, ValueError):
        raise UserError(f"a config must be a readable file, got {path!r}; check the path") from None


def _asking(journal: Journal, jobs: Jobs) -> Any:
    def ask(what: str, way: Way, *given: Any) -> dict[str, Any]:
        return journal.reply([what, way.plain, *given], lambda: jobs.of(way, what, *given))

    return ask


def _tell(text: str) -> None:
    print(f"psframe tune: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
