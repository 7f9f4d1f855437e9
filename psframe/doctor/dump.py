"""Command ``psframe dump RUN`` (:func:`main`): let a running job write down what all of its ranks do.

It asks the keepers of this host, by a signal; the job goes on.
"""

import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from psframe.cluster.flight.presence import Present, here
from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.errors import UserError, reason
from psframe.record import incident
from psframe.record.view import say

USAGE = "psframe dump RUN [--timeout SECONDS]"
EXAMPLE = "psframe dump runs/fashion-20261121-204643"
LOOK_S = 0.05  # seconds between two looks for the file, which another process writes


def parser() -> Parser:
    cli = Parser(USAGE, "Write down what all ranks of a running job do, on this host; the job goes on.", EXAMPLE)
    cli.add_argument("run", nargs="?", help="the folder of a run that trains")
    cli.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for the file (default: 10)")
    return cli


def _arguments(argv: Sequence[str]) -> Namespace:
    cli = parser()
    arguments = cli.parse_args(argv)
    if arguments.run is None:
        cli.error("it names no run")
    if not arguments.timeout > 0:
        cli.error(f"--timeout must be above 0, got {arguments.timeout:g}")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it, or where nothing was written."""
    arguments = _arguments(argv)
    run = Path(arguments.run)
    keepers = here(run)
    before = _files(run)
    for keeper in keepers:
        _ask(keeper, run)
    until = time.monotonic() + arguments.timeout
    while len(new := _files(run) - before) < len(keepers):
        if time.monotonic() > until:
            raise UserError(
                f"a job must answer within {arguments.timeout:g} s, got {len(new)} of {len(keepers)} files; look "
                "whether its disk can be written, or give --timeout"
            )
        time.sleep(LOOK_S)
    for path in sorted(new):
        say(str(path))
    return 0


def _ask(keeper: Present, run: Path) -> None:
    """Ask a keeper. Raises UserError if it has ended meanwhile, with its ranks."""
    try:
        os.kill(keeper.pid, signal.SIGUSR2)
    except OSError as error:
        raise UserError(
            f"a run must train on this host, got {str(run)!r}, the ranks of which end ({reason(error)}); give another"
        ) from None


def _files(run: Path) -> set[Path]:
    try:
        return {path for files in incident.found(run) for path in files}
    except OSError as error:
        raise UserError(f"the folder of a run must be readable, got {str(run)!r} ({reason(error)})") from None


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
