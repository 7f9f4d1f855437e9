"""Ranks that a script starts, ``mpirun -n N python -m psframe.api.rank NAME`` (:func:`main`): they train what it sends.

``NAME`` is the name of the script's socket.
"""

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from time import sleep
from typing import Any

from psframe.cluster import begin

begin.over_ranks()

import numpy as np  # noqa: E402

from psframe.api import arrays, channel, objects, script  # noqa: E402
from psframe.api.channel import Channel  # noqa: E402
from psframe.api.stream import Stream  # noqa: E402
from psframe.cluster import communicators  # noqa: E402
from psframe.cluster.cluster import AgreedError, Cluster  # noqa: E402
from psframe.cluster.command import give_up, report_to, run  # noqa: E402
from psframe.cluster.flight.recorder import RECORDER, recording  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.record import log  # noqa: E402
from psframe.record.library_warnings import LIBRARIES  # noqa: E402
from psframe.train import command  # noqa: E402

LEAVE_S = 12.0  # from the end of the script until a rank that has not left is killed


def main(argv: Sequence[str]) -> int:
    """Train, and return the exit status. All ranks must call."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        to_script = channel.connect(argv[0])
    except BaseException as error:
        return give_up(error)
    rank = Rank(to_script)
    RECORDER.ends_process = True
    report_to(rank.fail)
    Thread(target=_watch, args=(to_script,), daemon=True).start()
    try:
        return communicators.end(run(rank.train))
    except BaseException as error:
        return give_up(error)


class Rank:
    """A rank that trains what its script sends."""

    def __init__(self, to_script: Channel):
        self.to_script = to_script

    def train(self, cluster: Cluster) -> int:
        """Train, and tell the script how it ended; return the exit status. All ranks must call."""
        try:
            config, overrides = cluster.run_on_all(self._take)
            callbacks = cluster.run_on_all(lambda: self._callbacks() if cluster.rank == 0 else [])
            called = [*callbacks, Stream(self.to_script.send)] if cluster.rank == 0 else []
            with recording(cluster, give_up), LIBRARIES:
                of_run, stopped = command.train(cluster, config, overrides, quiet=True, callbacks=called)
        except AgreedError as error:
            if cluster.rank == 0:
                self._tell("refuse", str(error))
            raise
        if cluster.rank == 0:
            self._tell("end", objects.states(callbacks))
        if not of_run.parted:
            of_run.cluster.barrier()
        return 128 + stopped.number if stopped and stopped.number else 0

    def fail(self, message: str) -> None:
        """Tell the script what has ended this rank."""
        self._tell("fail", message)

    def _take(self) -> tuple[dict[str, Any], list[str]]:
        """Take the config and its objects from the script."""
        config, overrides, path, sys.argv, data, facts, log_level = self._ask("job")
        log.level(log_level)
        sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
        given = objects.unpickled("an object of the script", data)
        script.give({**given, **({"dataset": arrays.dataset(facts, self._read)} if facts else {})})
        return config, overrides

    def _callbacks(self) -> list[Any]:
        callbacks: list[Any] = objects.unpickled("a callback", self._ask("callbacks"))
        return callbacks

    def _read(self, split: str, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self._ask("read", split, lo, hi)
        return images, labels

    def _ask(self, *request: Any) -> Any:
        try:
            self.to_script.send(request)
            return self.to_script.receive()
        except (EOFError, OSError):
            raise UserError("a script must wait for its ranks, and has left them; start it again") from None

    def _tell(self, *message: Any) -> None:
        with suppress(OSError):  # the script is gone
            self.to_script.send(message)


def _watch(to_script: Channel) -> None:
    """Leave with the next step where the script ends before its ranks, and at once if that takes too long."""
    poll = select.poll()
    poll.register(to_script.fileno(), select.POLLRDHUP)
    poll.poll()
    os.kill(os.getpid(), signal.SIGUSR1)
    sleep(LEAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
