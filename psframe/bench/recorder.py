"""Benchmark ``recorder`` (:func:`main`): the time that the flight recorder takes, and those who look at a job.

In ``mpirun -n N python -m psframe.bench recorder CONFIG`` epochs of the same job take turns: with nothing noted, with
the recorder, and with ``psframe top`` and ``psframe watch`` attached as well. Turns come
in pairs, with and without. The keeper's process runs in all of them.
"""

import os
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from time import perf_counter, sleep
from typing import Any

from psframe.bench.files import claim, write
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked, give_up
from psframe.cluster.flight.recorder import RECORDER, recording
from psframe.cluster.parser import Parser
from psframe.errors import UserError
from psframe.record.flight import RING
from psframe.record.spread import spread
from psframe.record.view import aligned, say
from psframe.train import epoch
from psframe.train.assembly import assemble, setup
from psframe.train.plan import plan
from psframe.train.run import Run

USAGE = "mpirun -n N python -m psframe.bench recorder CONFIG [key.path=value ...] [--json FILE]"
EXAMPLE = "mpirun -n 2 python -m psframe.bench recorder config.yaml --rounds 10"
NOTHING, RECORDED = "nothing noted", "recorder"
#: commands that look at the job, as arguments of Python; each is attached in turns of its own
LOOKERS = {
    "psframe top": "import pty, sys; pty.spawn([sys.executable, '-m', 'psframe.doctor.live.top', sys.argv[1]])",
    "psframe watch": (
        "import subprocess, sys, time, urllib.request as web\n"
        "words = [sys.executable, '-m', 'psframe.doctor.live.watch', sys.argv[1]]\n"
        "address = subprocess.Popen(words, stdout=subprocess.PIPE, text=True).stdout.readline().strip()\n"
        "while True: web.urlopen(address.replace('/?', '/data?')).read(); time.sleep(2)"
    ),
}
MEASURED = (RECORDED, *LOOKERS)
STARTS_S = 3.0  # that a command has to attach, before a turn is timed


def parser() -> Parser:
    cli = Parser(USAGE, "Measure what the flight recorder, top and watch cost.", EXAMPLE)
    cli.add_argument("config", help="a YAML file; nothing is written")
    cli.add_argument("overrides", nargs="*", help="key.path=value")
    cli.add_argument("--of", default=",".join(MEASURED), help=f"some of {', '.join(MEASURED)} (default: all)")
    cli.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    cli.add_argument("--seconds", type=float, default=3, help="seconds of a turn, at least (default: 3)")
    cli.add_argument("--json", help="write the figures to this file")
    return cli


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _arguments(parser(), argv))
    if arguments is None:
        return 0
    run = assemble.build_run(cluster, plan.make(cluster, arguments.config, arguments.overrides))
    setup.init_parameters(run, None, quiet=True)
    with tempfile.TemporaryDirectory() as folder, recording(cluster, give_up):
        if cluster.link.leads:
            RECORDER.tell(run=folder)  # by which those who look find it
        turns = _turns(run, arguments, folder)
    run.sync.close()
    report = _report(run, arguments, turns)
    if cluster.rank == 0:
        say(describe(report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _arguments(made: Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(made.parse_intermixed_args(argv))
    names = [name.strip() for name in arguments["of"].split(",")]
    for name in names:
        if name not in MEASURED:
            raise UserError(f"--of must name some of {', '.join(MEASURED)}, got {name!r}")
    if arguments["rounds"] < 1 or not arguments["seconds"] > 0:
        raise UserError(
            f"--rounds must be 1 or more, and --seconds above 0, got {arguments['rounds']} and "
            f"{arguments['seconds']:g}; mend the command"
        )
    claim(arguments["json"])
    return {**arguments, "of": names}


def _turns(run: Run, arguments: Namespace, folder: str) -> dict[str, list[tuple[float, float]]]:
    """Return, by what was measured, the seconds of its turns, and those of what each is compared with."""
    _epochs(run, 1)  # the first one allocates
    n_epochs = run.cluster.bcast(ceil(arguments.seconds / _epochs(run, 1)))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in arguments.of}
    for number in range(arguments.rounds):
        for name, pairs in taken.items():
            order = (True, False) if number % 2 else (False, True)  # who comes first differs
            seconds = {}
            for with_it in order:
                RING.silent = name == RECORDED and not with_it
                with _attached(run.cluster, name if with_it else "", folder):
                    seconds[with_it] = _epochs(run, n_epochs)
                RING.silent = False
            pairs.append((seconds[True], seconds[False]))
    return taken


@contextmanager
def _attached(cluster: Cluster, name: str, folder: str) -> Iterator[None]:
    """Let a command look at the job within a context, if ``name`` is one's."""
    process = None
    if name in LOOKERS and cluster.rank == 0:
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen([sys.executable, "-c", LOOKERS[name], folder], start_new_session=True, **quiet)
        sleep(STARTS_S)
    try:
        yield
    finally:
        if process:
            os.killpg(process.pid, signal.SIGKILL)  # top ends with its terminal
            process.wait()


def _epochs(run: Run, n: int) -> float:
    """Return the seconds of epochs until the last rank is done. All ranks must call."""
    run.cluster.barrier()
    began = perf_counter()
    for _ in range(n):
        epoch.train_epoch(run)
        epoch.forget(run)
    run.cluster.barrier()
    return perf_counter() - began


def _report(run: Run, arguments: Namespace, taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return the figures: seconds of the turns, and their ratios."""
    labels = {key: run.labels[key] for key in ("model", "dataset", "n_ranks", "batch_size", "sync_mode")}
    rows = {
        name: {
            "seconds": spread([with_it for with_it, _ in pairs]),
            "without": spread([without for _, without in pairs]),
            "ratio": spread([with_it / without for with_it, without in pairs]),
        }
        for name, pairs in taken.items()
    }
    return {**labels, "rounds": arguments.rounds, "rows": rows}


def describe(report: dict[str, Any]) -> str:
    """Format the figures as text."""
    lines = [["", "compared with", "s a turn", "without", "ratio", "quartiles"]]
    for name, row in report["rows"].items():
        ratio = row["ratio"]
        lines.append(
            [name, NOTHING if name == RECORDED else RECORDED, f"{row['seconds']['median']:.3f}",
             f"{row['without']['median']:.3f}", f"{ratio['median']:.4f}", f"{ratio['low']:.4f} to {ratio['high']:.4f}"]
        )  # fmt: skip
    return (
        f"{report['model']} on {report['dataset']}, {report['sync_mode']}, {report['n_ranks']} ranks x batch "
        f"{report['batch_size']}, {report['rounds']} rounds\n{aligned(lines)}"
    )
