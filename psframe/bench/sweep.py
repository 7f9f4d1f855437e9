"""Sweep of ``python -m psframe.bench NAME --ranks 1,2,4`` (:func:`main`): one number of ranks after another."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from psframe.bench.files import claim, write
from psframe.cluster import mpirun, parser
from psframe.cluster.parser import Parser
from psframe.errors import UserError
from psframe.record.view import say

#: options of commands that start mpirun
OPTIONS = ("--ranks", "--rounds", "--out", "--mpirun")


def add_options(made: Parser) -> None:
    """Add the options of every command over several numbers of ranks."""
    made.add_argument("--ranks", help="numbers of ranks, as 2,4,8 (default: powers of two, to the cores there are)")
    made.add_argument("--mpirun", help=mpirun.HELP)


def counts(text: str | None, option: str = "--ranks") -> list[int]:
    """Return the numbers that an option lists; by default the number of cores and all powers of two below.

    Raise UserError for anything else.
    """
    if text is None:
        n_cores = len(os.sched_getaffinity(0))
        return sorted({n_cores, *(2**power for power in range(n_cores.bit_length()))})
    numbers = parser.counts(text, mpirun.MAX_RANKS)
    if not numbers:
        rule = f"whole numbers of 1 or more, and at most {mpirun.MAX_RANKS:,}"
        raise UserError(f"{option} must be {rule}, got {text!r}; write, say, {option} 2,4")
    return list(dict.fromkeys(numbers))


def on_ranks(start: Sequence[str], n_ranks: int, name: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the report of a benchmark on ``n_ranks`` ranks; raise UserError with its complaint."""
    return dict(reported(start, n_ranks, f"psframe.bench {name}", ["psframe.bench", name, *argv, "--json", "-"]))


def reported(start: Sequence[str], n_ranks: int, what: str, module: Sequence[str]) -> Any:
    """Run a module, with its arguments, on ``n_ranks`` ranks; return the last line of JSON that it prints.

    Raise UserError with its complaint, or if it prints none.
    """
    result = mpirun.python(start, n_ranks, ["-m", *module])
    if result.complaint:
        raise UserError(result.complaint)
    lines = [line for line in result.out.splitlines() if line.startswith(("{", "["))]
    if not lines:
        raise UserError(f"{what} must report, got nothing from {n_ranks} ranks; run it under mpirun alone")
    return json.loads(lines[-1])


def train(
    start: Sequence[str], n_ranks: int, config: str, overrides: Sequence[str], where: Path
) -> tuple[list[dict[str, Any]], str]:
    """Train by a config into the new folder ``where``; return the run's records, and the complaint if it failed."""
    from psframe.record import metrics  # loads NumPy: too early in a command that starts MPI here

    command = ["-m", "psframe.train", config, "--quiet", *overrides, f"record.dir={where}"]
    result = mpirun.python(start, n_ranks, command)
    if result.complaint:
        return [], result.complaint
    (run,) = where.iterdir()
    return metrics.read(run), ""


def over(numbers: Sequence[int], measure: Callable[[int], Any]) -> tuple[list[Any], list[str]]:
    """Return the results of ``measure(n_ranks)`` at each number, and the failures.

    A failure at the first number would probably repeat at all of them, so its UserError is raised.
    """
    results, failed = [], []
    for n_ranks in numbers:
        try:
            results.append(measure(n_ranks))
        except UserError as error:
            if not results:
                raise
            failed.append(f"{n_ranks} ranks: {error}")
            print(f"psframe: failed at {failed[-1]}", file=sys.stderr)
    return results, failed


def main(name: str, bench: Any, argv: Sequence[str]) -> int:
    """Run a benchmark that has ``USAGE``, ``joined(reports)`` and ``table(report)``; return the exit status.

    Options that are not this command's are the benchmark's.
    """
    whole = bench.parser()
    add_options(whole)
    arguments = whole.parse_intermixed_args(argv)  # tells of mistakes before any ranks are started
    own = Parser(bench.USAGE, "")
    add_options(own)
    own.add_argument("--json")
    _, rest = own.parse_known_args(argv)
    claim(arguments.json)
    start = mpirun.launcher(arguments.mpirun)
    reports, failed = over(counts(arguments.ranks), lambda n_ranks: on_ranks(start, n_ranks, name, rest))
    report = bench.joined(reports) | ({"failed": failed} if failed else {})
    if arguments.json != "-":
        say(bench.table(report))
    write(arguments.json, report)
    return 1 if failed else 0
