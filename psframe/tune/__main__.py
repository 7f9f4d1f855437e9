"""Command ``psframe tune CONFIG`` (:func:`main`): race the ways to train a config on this machine, keep the fastest."""

import re
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.cluster.parser import Parser, no_folder
from psframe.cluster.process import guarded
from psframe.config import untrusted
from psframe.config.schema import parse_value
from psframe.errors import UserError, nearest
from psframe.predict import measure, view
from psframe.record.view import say
from psframe.tune import sampled, space, written
from psframe.tune.goal import GoalSearch
from psframe.tune.goal import text as to_text
from psframe.tune.jobs import Jobs
from psframe.tune.journal import Journal
from psframe.tune.learn import Model
from psframe.tune.proposals import Combinations, Proposals
from psframe.tune.search import Request, Search, unknown
from psframe.tune.trials import Trials
from psframe.tune.way import Way

USAGE = "psframe tune CONFIG [key.path=value ...] [--ranks N,N] [--budget 10m] [--vary KEY[=V,V]] [--out DIR]"
EXAMPLE = "psframe tune config.yaml --ranks 4,8 --budget 5m"
FIGURES = ("epoch_s", "samples_per_s")
COMBINED = "combinations"
SAMPLERS: dict[str, type[Proposals]] = {COMBINED: Combinations, "tpe": sampled.Sampled}
FIRST = 0.5  # share of the budget for the fastest way, if a target is to be reached by it


def parser() -> Parser:
    cli = Parser(
        USAGE, "Find the fastest way to train a config on this machine, by training stretches in turn.", EXAMPLE
    )
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as train.batch_size=128")
    cli.add_argument("--ranks", help="numbers of ranks; the first tells the global batch (default: by the cores)")
    cli.add_argument("--budget", default="10m", help="most time to take, as 90s, 10m or 1h (default: 10m)")
    cli.add_argument("--for", dest="goal", default=FIGURES[0], metavar="WHAT",
                     help=f"figure to print, {' or '.join(FIGURES)}, or a target, as accuracy=0.88")  # fmt: skip
    cli.add_argument("--vary", action="append", default=[], metavar="KEY[=V,V]",
                     help=f"open a key that the config sets, or narrow one: {', '.join(space.KNOBS)}, all")  # fmt: skip
    cli.add_argument("--sampler", metavar="NAME", help=f"with a target: {', '.join(SAMPLERS)} (default: {COMBINED})")
    cli.add_argument("--machine", metavar="FILE", help="this machine's profile (psframe predict --measure): it learns")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    cli.add_argument("--out", help="a folder for tuned.yaml, or one to go on in (default: tune-TIME)")
    return cli


def seconds(text: str) -> float:
    """Return the seconds of a ``--budget``, as 90s, 10m or 1h; raise UserError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})(s|m|h)", text)
    if not match or not int(match[1]):
        raise UserError(f"--budget must be a time as 90s, 10m or 1h, got {text!r}; write one of these")
    return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def goal(text: str) -> tuple[str, float | None]:
    """Return the figure of ``--for``, and its target if it has one; raise UserError for anything else."""
    name, equals, value = text.partition("=")
    target = parse_value(value) if equals else None
    wrong = (
        (not isinstance(target, int | float) or isinstance(target, bool) or not isfinite(target))
        if equals
        else name not in FIGURES
    )
    if wrong or not name or (equals and name in FIGURES):
        raise UserError(f"--for must be {', '.join(FIGURES)} or METRIC=VALUE, got {text!r}; write, say, accuracy=0.88")
    return name, None if target is None else float(target)


def sampler(name: str | None, target: float | None) -> str:
    """Return the name of ``--sampler``; raise UserError for an unknown one, one without a target, or without Optuna."""
    if name not in (None, *SAMPLERS):
        raise UserError(f"--sampler must be {' or '.join(SAMPLERS)}, got {name!r}; {nearest(name, SAMPLERS)}")
    if name and target is None:
        raise UserError(
            f"--sampler {name} proposes settings that reach a target, got none; add --for, as accuracy=0.88"
        )
    if SAMPLERS[name or COMBINED] is sampled.Sampled:
        sampled.load()
    return name or COMBINED


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
    if arguments.config is None:
        cli.error("it names no config")
    mpirun.refuse_ranks("psframe tune")
    out = Path(arguments.out or time.strftime("tune-%Y%m%d-%H%M%S"))
    asked = {
        "config": _text(arguments.config),
        "overrides": arguments.overrides,
        "ranks": sweep.counts(arguments.ranks) if arguments.ranks else [],
        "vary": space.varied(arguments.vary),
        "for": [*goal(arguments.goal)],
        "machine": arguments.machine,
        "mpirun": mpirun.launcher(arguments.mpirun),
    }
    asked["sampler"] = sampler(arguments.sampler, asked["for"][1])
    budget_s = seconds(arguments.budget)
    journal = Journal(out, asked)
    try:
        _tune(asked, arguments, out, journal, budget_s)
    except KeyboardInterrupt:
        print(f"psframe: broken off; the same command with --out {out} goes on", file=sys.stderr)
        raise
    except OSError as error:
        raise no_folder(error.filename or out, error) from None
    finally:
        journal.close()
    return 0


def _tune(asked: dict[str, Any], arguments: Namespace, out: Path, journal: Journal, budget_s: float) -> None:
    """Find the fastest way; then, with a target, the settings that reach it first."""
    (figure, target), vary, ranks = asked["for"], asked["vary"], asked["ranks"]
    of_system = {
        key: values for key, values in vary.items() if target is None or key in space.KNOBS or key == space.ALL
    }
    first_s = budget_s if target is None else FIRST * budget_s
    jobs = Jobs(asked["mpirun"], arguments.config, arguments.overrides)
    first_ranks = ranks[0] if ranks else measure.n_cores()
    of_machine = (
        arguments.config,
        arguments.overrides,
        ranks or [first_ranks, first_ranks + 1],
        arguments.machine,
        asked["mpirun"],
    )
    model = Model(*of_machine) if arguments.machine else None
    search = Search(Request(ranks, of_system), first_ranks, _asking(journal, jobs), jobs.drop,
                    lambda: first_s - journal.elapsed_s, _tell,
                    model.seconds if model else unknown)  # fmt: skip
    try:
        search.look()
        if target is not None and figure not in search.origin.metrics:
            raise UserError(f"--for must name a metric, got {figure!r}; {nearest(figure, search.origin.metrics)}")
        concluded = search.run()
    finally:
        jobs.close()
    results = written.Results(search, concluded, arguments.config, arguments.overrides, arguments.mpirun, out)
    results.write(concluded.best.way)
    say(results.text(figure if figure in FIGURES else FIGURES[0], journal.elapsed_s))
    results.keep()
    if model:
        checks, profile = model.learn([*search.race.entries.values()], search.origin.n_train)
        say(f"\n{view.checks(checks)}\n{view.error_line(profile.checks)}")
    if target is not None:
        others = {key: values for key, values in vary.items() if key not in of_system}
        proposals = SAMPLERS[asked["sampler"]](search.origin, concluded.best.way, others)
        of_run = (asked["mpirun"], arguments.config, arguments.overrides, out, figure, target, journal)
        _reach(proposals, Trials(*of_run, lambda: budget_s - journal.elapsed_s), results)


def _reach(proposals: Proposals, trials: Trials, results: written.Results) -> None:
    """Find the settings that reach the target first; write and tell them."""
    found = GoalSearch(proposals, trials.sign * trials.target, trials.train, _tell).run()
    results.write(found.best, found, trials.sign)
    say(f"\n{to_text(found, f'{trials.metric} {trials.target:g}')}\n{results.command(found.best)}")


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
