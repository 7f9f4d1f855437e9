"""Command ``python -m psframe.run -n N[,N ...] [--restarts K] CONFIG [key.path=value ...]``: training with restarts.

:func:`supervise` trains under mpirun. If the job ends by itself before it is done (a rank was killed and the others
cannot go on, the server died, a node is lost), it restarts it from the last durable checkpoint. Ctrl-C and SIGTERM
reach the ranks as SIGUSR1, which every mpirun passes on: some answer other signals by killing all ranks at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until a job runs, Ctrl-C ends this without a traceback

import psutil  # noqa: E402

from psframe.cluster import mpirun  # noqa: E402
from psframe.cluster.flight import KEEPER  # noqa: E402
from psframe.cluster.parser import Parser, counts  # noqa: E402
from psframe.cluster.process import guarded  # noqa: E402
from psframe.config import schema, tuned  # noqa: E402
from psframe.errors import UserError, reason  # noqa: E402
from psframe.record import checkpoint, log, metrics, onward, run_dir, run_lock, stopped  # noqa: E402

USAGE = "python -m psframe.run -n N[,N ...] [--restarts K] CONFIG [key.path=value ...]"
EXAMPLE = "python -m psframe.run -n 4 --restarts 3 config.yaml checkpoint.every_seconds=60"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
KEEPER_S = 5.0  # for a node's keeper to write down what its ranks did
LEAVE_S = 12.0  # from a signal until the remaining ranks are killed
AGAIN_S = 1.0  # from one signal to the next: a launcher drops signals sent before its ranks run
ASKED = (signal.SIGINT, signal.SIGTERM)
USER_ERROR = 2  # exit status that a restart would not change


def parser() -> Parser:
    cli = Parser(USAGE, "Train under mpirun, and start again from the last checkpoint when the job dies.", EXAMPLE)
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as train.epochs=3")
    cli.add_argument("-n", dest="ranks", help="ranks; several numbers are for one start after the other")
    cli.add_argument("--restarts", type=int, default=3, help="how often to start again (default: 3)")
    cli.add_argument("--finish", action="store_true", help="do nothing where the newest run of this name is finished")
    cli.add_argument("--quiet", action="store_true", help="print nothing but what goes wrong")
    cli.add_argument("--log-level", choices=log.LEVELS, default="warning", help=log.HELP)
    cli.add_argument("--mpirun", help=mpirun.HELP)
    return cli


def _arguments(argv: Sequence[str]) -> Namespace:
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
    if arguments.config is None:
        cli.error("it names no config")
    if arguments.ranks is None:
        cli.error("it names no number of ranks: -n N")
    ranks = counts(arguments.ranks, mpirun.MAX_RANKS)
    if not ranks:
        cli.error(f"-n must be numbers of ranks, got {arguments.ranks!r}")
    if arguments.restarts < 0:
        cli.error(f"--restarts must be 0 or more, got {arguments.restarts}")
    arguments.ranks = ranks
    return arguments


class Job:
    """One mpirun after another; a signal ends the running one.

    Attributes
    ----------
    asked : int
        The signal sent to this process, or 0.
    killed : bool
        True if the ranks did not leave when asked to.
    word : str
        What runs of this job have in their locks.
    """

    def __init__(self) -> None:
        self.asked, self.killed, self.until = 0, False, 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.word = f"{os.uname().nodename}:{os.getpid()}:{time.time_ns()}"
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # ranks become children when their launcher dies
        for number in ASKED:
            signal.signal(number, self._ask)

    def run(self, words: Sequence[str]) -> int:
        """Run a launcher and wait; return its exit status, or 128 plus the number of the signal that ended it."""
        if self.asked:
            return 128 + self.asked
        environ = {**os.environ, run_lock.JOB: self.word}
        self.process = mpirun.started(words, stdin=subprocess.DEVNULL, preexec_fn=self._outlived, env=environ)
        if self.asked:  # a signal has arrived meanwhile
            self._pass_on()
        status = self.process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._clear()
        return status if status >= 0 else 128 - status

    def _outlived(self) -> None:
        """Ask the ranks to leave if this supervisor is killed."""
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)

    def _clear(self) -> None:
        """Kill processes that a killed launcher has left: they would train on beside those started next.

        Keepers end by themselves, once they have written what the ranks did.
        """
        until = time.monotonic() + KEEPER_S
        while True:
            children = psutil.Process().children(recursive=True)
            spared = [child for child in children if time.monotonic() < until and _is_keeper(child)]
            for left in children:
                with suppress(psutil.NoSuchProcess):
                    if left not in spared:
                        left.kill()
            _, late = psutil.wait_procs(spared, timeout=max(0.0, until - time.monotonic()))
            for left in late:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = bool(self.asked), self.asked or number
        if not again and self.process:
            self._pass_on()
        elif again and number == signal.SIGINT:  # a scheduler may send SIGTERM to all its processes, repeatedly
            self._kill()

    def _pass_on(self) -> None:
        self.until = time.monotonic() + LEAVE_S
        signal.signal(signal.SIGALRM, self._remind)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        self._remind()

    def _remind(self, *_: object) -> None:
        assert self.process
        if time.monotonic() < self.until:
            self.process.send_signal(signal.SIGUSR1)
        else:
            self.killed = True
            self._kill()

    def _kill(self) -> None:
        try:
            if self.process:
                os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _is_keeper(process: psutil.Process) -> bool:
    """Return True for the process that keeps what ranks note."""
    try:
        return any(KEEPER in word for word in process.cmdline())
    except psutil.Error:
        return False


def _finished(path: Path | None, settings: schema.Config) -> bool:
    """True if a run has trained all epochs, and saved the last one if it is to save any; or was stopped early."""
    if path is not None and stopped.is_marked(path):
        return True
    if path is None or metrics.last_epoch(path) < settings.train.epochs:
        return False
    epochs = settings.train.epochs
    return not settings.checkpoint.is_due(epochs, epochs) or checkpoint.epoch_of(path / "checkpoints") == epochs


def supervise(arguments: Namespace) -> int:
    """Start the job, and restart it while it dies; return the exit status of the last start."""
    settings = schema.read(arguments.config, tuned.without_word(arguments.overrides))
    start = mpirun.launcher(arguments.mpirun)
    if settings.fault.on_worker_loss == "continue" and "--with-ft" not in start and mpirun.is_openmpi(start):
        start += ["--with-ft", "ulfm"]
    if arguments.finish and _finished(run_dir.newest(Path(settings.record.dir), settings.name), settings):
        return 0
    resume: list[str] = []
    job, began = Job(), time.time() - 1  # file systems have coarser timestamps
    for number in range(arguments.restarts + 1):
        n_ranks = arguments.ranks[min(number, len(arguments.ranks) - 1)]
        words = [*start, "-n", str(n_ranks), sys.executable, "-m", "psframe.train", arguments.config]
        words += ["--log-level", arguments.log_level, *(["--quiet"] if arguments.quiet else [])]
        status = job.run([*words, *arguments.overrides, *resume])
        path = run_dir.newest(Path(settings.record.dir), settings.name, began, job.word)
        if job.asked:
            if job.killed:
                _say(f"the ranks did not leave within {LEAVE_S:g} s, and were killed{_where(path)}")
            return 0 if _finished(path, settings) else 128 + job.asked
        # a launcher that survives the loss of ranks exits with 0 even if all were killed
        if status == USER_ERROR or (status == 0 and "--with-ft" not in start):
            return status
        if _finished(path, settings):
            if status:
                _say(f"training was done, and saved, when the job ended with status {status}: {path}")
            return 0
        if number == arguments.restarts:
            break
        resume = [f"checkpoint.resume={path}"] if path and run_dir.continues(path) else []
        at = "from its last checkpoint" if resume else "from the beginning"
        after = arguments.ranks[min(number + 1, len(arguments.ranks) - 1)]
        _say(f"the job ended with status {status}; start {number + 2} of {arguments.restarts + 1}, {at}, {after} ranks")
    message = f"the job ended with status {status}, and --restarts is {arguments.restarts}; see what it said above"
    _say(f"{message}{_where(path)}")
    return status or 1


def _where(path: Path | None) -> str:
    return f"; {onward.of_left(path)}" if path else ""


def _say(text: str) -> None:
    print(f"psframe: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    mpirun.refuse_ranks("psframe.run")
    try:
        return supervise(_arguments(argv))
    except OSError as error:
        raise UserError(
            f"a run's folder must have files that can be read, and no links, got {str(error.filename)!r} "
            f"({reason(error)}); mend that"
        ) from None


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
