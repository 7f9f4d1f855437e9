"""Command ``psframe scale RUN --to N`` (:func:`main`): ranks that join a running job, or leave it."""

import fcntl
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.config.schema import content
from psframe.errors import UserError, reason
from psframe.record import run_lock, scaling
from psframe.record.folder import Folder
from psframe.record.scaling import Answer, Request

USAGE = "psframe scale RUN [--to N] [--drain HOST[,HOST]] [--timeout SECONDS]"
EXAMPLE = "psframe scale runs/fashion-20261121-204643 --to 8"
HEIR_S = 15.0  # seconds in which another rank may go on in the place of rank 0, where ranks outlive each other
LOOK_S = 0.05  # seconds between two looks for the answer, a file that the job's host may write on a network disk


def parser() -> Parser:
    cli = Parser(USAGE, "Let spare ranks of a running job join it, or ranks leave and wait.", EXAMPLE)
    cli.add_argument("run", nargs="?", help="the folder of a run that trains, begun with elastic.ranks")
    cli.add_argument("--to", type=int, help="ranks that train from then on")
    cli.add_argument("--drain", default="", help="hosts whose ranks leave, and do not come back")
    cli.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the answer (default: 60)")
    return cli


def _arguments(argv: Sequence[str]) -> Namespace:
    cli = parser()
    arguments = cli.parse_args(argv)
    arguments.drain = [host for host in arguments.drain.split(",") if host]
    if arguments.run is None or (arguments.to is None and not arguments.drain):
        cli.error("it must name a run, and --to N or --drain HOST")
    if arguments.to is not None and arguments.to < 1:
        cli.error(f"--to must be 1 or more, got {arguments.to}")
    if not arguments.timeout > 0:
        cli.error(f"--timeout must be above 0, got {arguments.timeout:g}")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError for a mistake in it."""
    arguments = _arguments(argv)
    run, began = Path(arguments.run), perf_counter()
    _check(run)
    try:
        with alone(run):
            told = _answer(run, scaling.ask(run, arguments.to, arguments.drain), arguments.timeout)
    except OSError as error:
        raise UserError(f"the folder of the run must be writable, got {str(run)!r} ({reason(error)})") from None
    if told.error:
        raise UserError(told.error)
    if told.before == told.now:
        print(f"{told.now} ranks train, as before")
        return 0
    print(
        f"{told.now} ranks train, {told.before} did before: from epoch {told.epoch}, after step {told.step:,}, "
        f"{perf_counter() - began:.2f} s from the command; the pause took {told.pause_s:.2f} s"
    )
    return 0


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """Let one command at a time ask a job, as far as its disk has locks; UserError if another one does."""
    with Folder(run) as folder:
        try:
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"one command at a time may ask a job, got another one that waits for {str(run)!r}; try again after it"
            ) from None
        except OSError:
            pass
        yield


def _check(run: Path) -> None:
    try:
        is_live = run_lock.is_live(run)
    except OSError as error:
        raise UserError(f"RUN must be the folder of a run, got {str(run)!r} ({reason(error)})") from None
    if not is_live:
        raise UserError(f"RUN must be a run that trains, got {str(run)!r}, in which no process does; start it first")
    if not _of_config(run, "elastic").get("ranks"):
        raise UserError(
            f"RUN must have been begun with elastic.ranks, got {str(run)!r} without: all its ranks train to the end; "
            "start it with elastic.ranks=N, of the more ranks that mpirun starts"
        )


def _of_config(run: Path, name: str) -> dict[str, Any]:
    section = content(str(run / "config.yaml")).get(name)
    return section if isinstance(section, dict) else {}


def _answer(run: Path, asked: Request, timeout_s: float) -> Answer:
    lived = perf_counter()
    until, outlives = lived + timeout_s, _of_config(run, "fault").get("on_worker_loss") == "continue"
    while (now := perf_counter()) < until:
        if (told := scaling.answered(run, asked)) is not None:
            return told
        if run_lock.is_live(run):
            lived = now
        elif now - lived > (HEIR_S if outlives else 0):
            scaling.withdraw(run, asked)
            raise UserError(f"the job must still train to change, got {str(run)!r}, which has ended")
        sleep(LOOK_S)
    is_off = scaling.withdraw(run, asked)
    raise UserError(
        f"the job must answer within --timeout, {timeout_s:g} s, and did not: it changes after the step under way, or "
        f"after an evaluation; {'the request is withdrawn' if is_off else 'it may still change'}, give a longer one"
    )


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
