"""Command ``psframe simulate CONFIG --ranks N,N --machine NAME`` (:func:`main`): training in virtual time."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import mpi4py

mpi4py.rc.initialize = False  # virtual ranks need no MPI, only its names

from psframe.bench import sweep  # noqa: E402
from psframe.cluster import mpirun  # noqa: E402
from psframe.cluster.parser import Parser  # noqa: E402
from psframe.cluster.process import guarded  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.predict import view  # noqa: E402
from psframe.predict.check import BESIDE, add  # noqa: E402
from psframe.record.view import aligned, say  # noqa: E402
from psframe.virtual import asked, check, engines, options  # noqa: E402
from psframe.virtual.apart import apart  # noqa: E402
from psframe.virtual.training import Simulation  # noqa: E402

USAGE = (
    "python -m psframe.virtual CONFIG [key.path=value ...] --ranks N,N --machine NAME|FILE "
    "[--nodes N] [--link NAME] [--slow RANK:STEPS] [--lose RANK:SECONDS,...] [--seed N] [--step-s SECONDS] [--simgrid] "
    "[--check] [--mpirun WORDS]"
)
EXAMPLE = "psframe simulate config.yaml --machine knl-7250-mcdram --ranks 64,1024 --nodes 16"
#: headings, keys of a record and formats
TINY_S = 1e-12  # in place of no time
COLUMNS = (
    *(("ranks", "n_ranks", ","), ("nodes", "n_nodes", ","), ("epochs", "epoch", ","), ("seconds", "seconds", ".3f")),
    *(("samples/s", "samples_per_s", ",.0f"), ("wait", "wait_s", ".3f"), ("staleness", "staleness_p50", ",")),
    *(("p99", "staleness_p99", ","), ("loss", "loss", ".4f"), ("accuracy", "accuracy", ".2%")),
)


def parser() -> Parser:
    cli = Parser(
        USAGE, "Train on virtual ranks: real gradients, in the time of a machine that is not at hand.", EXAMPLE
    )
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as sync.mode=async_ps")
    cli.add_argument("--ranks", default="64", help="numbers of ranks (default: 64)")
    options.add(cli)
    cli.add_argument("--simgrid", action="store_true", help="time the messages between nodes by SimGrid, too")
    cli.add_argument("--check", action="store_true", help="train the same on real ranks here, and keep both times")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    arguments = parser().parse_intermixed_args(argv)
    mpirun.refuse_ranks("psframe.virtual")
    counts = sweep.counts(arguments.ranks)
    if not arguments.config:
        raise UserError("psframe simulate must be given a config, got none; give a YAML file")
    if arguments.simgrid and engines.interpreter() is None:
        raise UserError(engines.lacks())
    request = asked.Simulations(arguments, counts, arguments.check)
    simulations, real = _asked(request, counts)
    answers = apart([partial(asked.records, one, arguments.simgrid) for one in simulations])
    ended = [at for at, answer in enumerate(answers) if "error" not in answer]
    if ended:
        _tell([answers[at] for at in ended])
        known = request.machine
        if real:
            runs = [(answers[at]["records"], real[at], simulations[at].overrides) for at in ended]
            table, checks = check.told(runs)
            say(table)
            known = add(arguments.machine, checks, "simulations")
        say(view.error_line(known.simulations))
    failed = [
        answer["error"] if len(counts) == 1 else f"{n} ranks: {answer['error']}"
        for n, answer in zip(counts, answers, strict=True)
        if "error" in answer
    ]
    if failed:
        raise UserError("; ".join(failed))
    return 0


def _asked(request: asked.Simulations, counts: Sequence[int]) -> tuple[list[Simulation], list[check.Records]]:
    """Return the simulations, and, where they are checked, the records of real ranks, which then train first."""
    arguments = request.arguments
    if not arguments.check:
        return [request.simulation(arguments.config, arguments.overrides, n) for n in counts], []
    start, overrides = mpirun.launcher(arguments.mpirun), [*arguments.overrides, *BESIDE, "train.threads=1"]
    request.time(arguments.config, overrides)
    pairs = [check.beside(request, start, overrides, n) for n in counts]
    return [simulation for simulation, _ in pairs], [records for _, records in pairs]


def _tell(answers: Sequence[dict[str, Any]]) -> None:
    """Print where the runs are, their times, and the rest of each one's last record."""
    rows = [[heading for heading, _, _ in COLUMNS]]
    for answer in answers:
        records = answer["records"]
        summed = {key: sum(record[key] for record in records) for key in ("epoch_s", "wait_s", "samples_used")}
        last = {**records[-1], "seconds": summed["epoch_s"], "wait_s": summed["wait_s"]}
        last["samples_per_s"] = summed["samples_used"] / max(summed["epoch_s"], TINY_S)
        rows.append([format(last[key], form) if last[key] is not None else "-" for _, key, form in COLUMNS])
        say(f"simulated on {last['simulated']}: {answer['run']}")
        if answer["links"]:
            say(f"links: {answer['links']}")
        if answer["outlived"]:
            say(f"ended before rank(s) {', '.join(map(str, answer['outlived']))} died, which --lose asked for")
    say(f"\n{aligned(rows)}")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
