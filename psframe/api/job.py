"""Ranks that a script has started (:class:`Job`): it serves them, and sees that none outlives it.

One thread does all, the one that calls: it waits for messages and output at once, so nothing is forked, and Ctrl-C
interrupts the wait.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from psframe.api import channel
from psframe.api.channel import Channel
from psframe.cluster import mpirun
from psframe.errors import UserError
from psframe.record import log

LEAVE_S = 12.0  # from the request to leave until the ranks are killed
AGAIN_S = 1.0  # from one request to the next: a launcher drops signals sent before its ranks run
END_S = 5.0  # for killed processes to be gone
LESS = tuple(f"psframe: {level}: " for level in (*log.LEVELS, "critical"))  # of lines that end no job
BANNER = "=" * 83  # begins what MPICH's launcher prints of a rank that died

#: a rank's request and the function that answers it: ``answer(channel, *given)``
Answers = dict[str, Callable[..., Any]]


class Job:
    """A launcher with its ranks.

    Parameters
    ----------
    words : sequence of str
        The launcher, its flags and number of ranks.
    answers : dict of str to callable
        By the first word of a rank's message; called with the rank's channel and the message's other parts.

    Attributes
    ----------
    said : list of str
        Errors of the ranks: lines on stderr that begin with ``psframe: ``, but for warnings and less.
    """

    def __init__(self, words: Sequence[str], answers: Answers):
        self.answers, self.said = answers, list[str]()
        self.selector, self.ranks = selectors.DefaultSelector(), set[Channel]()
        self.listening, name = channel.listen()
        self.until = self.again = float("inf")
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            self.process = mpirun.started([*words, sys.executable, "-m", "psframe.api.rank", name], **pipes)
        except BaseException:
            self.listening.close()
            self.selector.close()
            raise
        self.selector.register(self.listening, selectors.EVENT_READ, self._accept)
        self.outputs = Output(sys.stdout, None), Output(sys.stderr, self.said)
        for pipe, output in zip((self.process.stdout, self.process.stderr), self.outputs, strict=True):
            assert pipe
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_READ, output.take)

    def run(self) -> int:
        """Serve the ranks until all have ended; return the launcher's exit status. Ctrl-C asks them to leave."""
        asked = False
        try:
            while True:
                try:
                    while self._open():
                        self._serve()
                    break
                except KeyboardInterrupt:
                    if asked:
                        raise  # once more: at once
                    asked = True
                    self.leave()
            status = self.process.wait()
        finally:
            self.end()
        if asked:
            raise KeyboardInterrupt
        return status

    def mute(self) -> None:
        """Pass on nothing more of what the ranks print: one has failed, and its error is the caller's."""
        for output in self.outputs:
            output.ended = True

    def leave(self) -> None:
        """Ask the ranks to leave with the next step, and kill them if they do not."""
        self.until, self.again = monotonic() + LEAVE_S, monotonic()

    def end(self) -> None:
        """Kill what still runs, and close everything."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        limit = monotonic() + END_S
        for rank in list(self.ranks):
            _await_end(rank, limit)
            rank.close()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()
        self.listening.close()
        self.selector.close()

    def _open(self) -> bool:
        """Return True while a process can still print."""
        return len(self.selector.get_map()) > 1 + len(self.ranks)

    def _serve(self) -> None:
        now = monotonic()
        if now >= self.until:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.until = self.again = float("inf")
        elif now >= self.again and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            self.again = now + AGAIN_S
        nearest = min(self.until, self.again) - now
        for key, _ in self.selector.select(None if nearest == float("inf") else max(0.0, nearest)):
            if not key.data(key.fileobj):
                self.selector.unregister(key.fileobj)

    def _accept(self, listening: socket.socket) -> bool:
        connected, _ = listening.accept()
        try:
            rank = Channel(connected)
        except UserError:
            return True  # another user's process, which is none of the ranks
        self.ranks.add(rank)
        self.selector.register(rank, selectors.EVENT_READ, self._answer)
        return True

    def _answer(self, rank: Channel) -> bool:
        """Answer a message, or forget a rank that is gone."""
        answered = False
        try:
            name, *given = rank.receive()
            self.answers[name](rank, *given)
            answered = True
        except (EOFError, ConnectionError):
            pass
        finally:
            if not answered:  # also where Ctrl-C has cut a message short: a rank without its script leaves
                self.ranks.discard(rank)
                self.selector.unregister(rank)
                rank.close()
        return True


class Output:
    """Lines that processes print to a pipe, passed on to a stream of this one.

    Parameters
    ----------
    stream : file
    said : list of str or None
        Takes psframe's errors; what follows the first is the launcher's, and not passed on.
    """

    def __init__(self, stream: Any, said: list[str] | None):
        self.stream, self.said, self.rest, self.ended = stream, said, b"", False

    def take(self, pipe: Any) -> bool:
        """Pass on the lines that have come; return False at the end."""
        data = os.read(pipe.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data and self.rest:
            lines, self.rest = [self.rest], b""
        for line in lines:
            self._pass(line.decode(errors="replace"))
        return bool(data)

    def _pass(self, line: str) -> None:
        if line == BANNER or self.ended:
            self.ended = True
            return
        if self.said is not None:
            if line.startswith("psframe: ") and not line.startswith(LESS):
                self.said.append(line.removeprefix("psframe: "))
            if self.said:
                return
        with suppress(OSError, ValueError):  # a stream that is closed
            self.stream.write(f"{line}\n")
            self.stream.flush()


def _await_end(rank: Channel, limit: float) -> None:
    """Wait until a rank is gone, and kill it at the ``limit``."""
    rank.socket.settimeout(max(0.01, limit - monotonic()))
    try:
        while rank.socket.recv(1 << 16):
            pass
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)
    except OSError:
        pass
