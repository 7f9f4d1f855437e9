"""Flight recorder of this rank (:func:`begin`): its ring in the node's memory, and a socket to the node's keeper."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

import psframe
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.flight.keeper import ASK, BYE, ENDS, FACTS, STACKS, WROTE
from psframe.cluster.flight.stacks import Stacks
from psframe.cluster.flight.watchdog import Watchdog
from psframe.cluster.gates import PeerLost
from psframe.record import flight
from psframe.record.flight import RING

ANSWER_S = 20.0  # until an incident counts as not written
START = "import sys; sys.path[:] = {path!r}; from psframe.cluster.flight.keeper import main; main{given!r}"


class Recorder:
    """What a rank tells its keeper; does nothing before :func:`begin`, or where no keeper could be started."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._held: list[int] = []  # descriptors of the last recording
        self.run = ""  # its folder, once it has one
        self.place = 0  # of its ring in the node's memory
        self.ends_process = False  # True where the process has nothing to do behind its job, and must end with it
        self.watchdog: Watchdog | None = None
        self._stacks: Stacks | None = None
        self._asking = Lock()

    def tell(self, **facts: Any) -> None:
        """Add facts of the job (plain values, at most 60 kB) to what an incident says."""
        self._send(FACTS, json.dumps(facts).encode())

    def incident(self, reason: str, message: str, details: str = "") -> str:
        """Let the keeper write an incident, with all ranks of this node; return its path, "" if there is none.

        Of ``details``, a traceback, the end is kept.

        Any thread of any rank may call, and waits until it is written, at most ANSWER_S.
        """
        asked = {"reason": reason, "message": message[:4000], "details": details[-8000:]}
        with self._asking:
            self._answer(0)  # one that came too late
            if not self._send(ASK, json.dumps(asked).encode()):
                return ""
            return self._answer(ANSWER_S)

    def _answer(self, seconds: float) -> str:
        """Return what the keeper sends within a time, "" for nothing."""
        if not self._sock:
            return ""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        with suppress(OSError):
            if poll.poll(seconds * 1e3):
                return os.fsdecode(self._sock.recv(1 << 16).strip(b"\0"))
        return ""

    def close(self) -> None:
        """Tell the keeper that this rank ends in good order; its socket stays open until the process ends."""
        RING.put(flight.STATE, flight.ENDED)
        if self._send(BYE, ENDS if self.ends_process else b"") and self._sock:
            self._held.append(
                os.dup(self._sock.fileno())
            )  # until this process ends; Python closes sockets before MPI does

    def _send(self, kind: int, content: bytes = b"", fds: tuple[int, ...] = ()) -> bool:
        if not self._sock:
            return False
        try:
            socket.send_fds(self._sock, [bytes([kind]) + content], fds)
            return True
        except OSError:  # the keeper was killed, or is far behind
            return False

    def open(self, end: socket.socket, number: int) -> None:
        """Use ``end``, a socket to the keeper, from here on, as rank ``number`` of the node. The main thread calls."""
        end.setblocking(False)
        last, self._sock, self.run = self._sock, end, ""
        self._stacks, before = Stacks(lambda: self._send(WROTE)), self._held
        self._held = [self._stacks.fd] if self._stacks.fd >= 0 else []
        # Python's own handler tells the keeper of a signal by it, also while a call does not return
        signal.set_wakeup_fd(end.fileno(), warn_on_full_buffer=False)
        if last:
            last.close()
        else:
            os.register_at_fork(after_in_child=self._leave)
        for fd in before:
            os.close(fd)
        self._send(STACKS, json.dumps([number, os.getpid(), flight.space()]).encode(), tuple(self._held))

    def _leave(self) -> None:
        """Be no rank, in a process that a rank has forked: its signals and its end are its own."""
        signal.set_wakeup_fd(-1)
        if self._stacks:
            self._stacks.leave()
        if self._sock:
            self._sock.close()
            self._sock = None
        for fd in self._held:
            os.close(fd)
        self._held = []


#: of this process
RECORDER = Recorder()


@contextmanager
def recording(cluster: Cluster, end: Callable[[PeerLost], object]) -> Iterator[None]:
    """Record within a context, and watch over waits without a deadline; all ranks of ``cluster`` must enter it.

    An error that all ranks raise together ends in an incident, once training has begun; of another one, which ends the
    job, :func:`psframe.cluster.command.give_up` tells, which is ``end``, too.
    """
    memory = begin(cluster)
    with _watched(cluster, memory, end):
        try:
            yield
        except AgreedError as error:
            if cluster.link.leads and RECORDER.run:
                RECORDER.incident("error", str(error))
            RECORDER.close()
            raise
        RECORDER.close()


@contextmanager
def _watched(cluster: Cluster, memory: np.ndarray | None, end: Callable[[PeerLost], object]) -> Iterator[None]:
    """Watch over waits within a context."""
    if memory is None:
        yield
        return
    watchdog = Watchdog(memory.data, cluster.rendezvous, cluster.n_nodes == 1, end)
    RECORDER.watchdog = watchdog
    watchdog.start()
    try:
        yield
    finally:
        RECORDER.watchdog = None
        watchdog.stop()


def follow(cluster: Cluster) -> None:
    """Watch over ``cluster``, which is left of a job that goes on without a rank. All of its ranks must call."""
    RECORDER.tell(left=cluster.n_ranks)
    places = cluster.allgather((cluster.node, RECORDER.place))
    if RECORDER.watchdog:
        of_node = [place for node, place in places if node == cluster.node]
        RECORDER.watchdog.follow(cluster.rendezvous, of_node, cluster.n_nodes == 1)


def begin(cluster: Cluster) -> np.ndarray | None:
    """Move every rank's ring into memory of its node, and start its keeper. All ranks of ``cluster`` must call.

    Return that memory, uint8; None where there is no room for it. What else is denied is done without: no keeper, or no
    stacks.
    """
    link, size, at = cluster.link, flight.N_BYTES, cluster.node_rank * flight.N_BYTES
    try:
        memory, fd = link.share_open(cluster.sizes[cluster.node] * size, take=False)
    except OSError:  # on every rank of the node
        return None
    RING.put(flight.PID, os.getpid())
    RING.put(flight.RANK, cluster.rank)
    RING.put(flight.STATE, flight.STARTS)
    RING.put(flight.SPACE, flight.space())
    RING.move(memory[at : at + size])
    RECORDER.place = cluster.node_rank
    end = _keep(cluster, fd)
    os.close(fd)
    if end:
        RECORDER.open(end, cluster.node_rank)
    return memory


def _keep(cluster: Cluster, fd: int) -> socket.socket | None:
    """Start the keeper of this node; return this rank's socket to it, None where there is none. All must call."""
    link, pairs = cluster.link, list[tuple[socket.socket, socket.socket]]()
    if link.leads:
        try:
            for _ in range(cluster.sizes[cluster.node]):
                pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            _start(cluster, fd, [pair[0] for pair in pairs])
        except OSError:  # no more descriptors, or processes
            pairs.clear()
    if not link.tell(bool(pairs)):
        return None
    if not link.leads:
        return socket.socket(fileno=link.hand_out())
    link.hand_out([pair[1].fileno() for pair in pairs[1:]])
    for keepers, _ in pairs:
        keepers.close()
    for _, others in pairs[1:]:
        others.close()
    return pairs[0][1]


def _library() -> list[str]:
    """Return the folders of code that is not the user's own."""
    root = Path(psframe.__file__).parents[1]
    named = {*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), os.path.dirname(os.__file__)}
    return [*(f"{root / name}/" for name in ("psframe", "models", "datasets")), *(f"{path}/" for path in sorted(named))]


def _start(cluster: Cluster, fd: int, ends: list[socket.socket]) -> None:
    """Start the keeper's process. Raises OSError where none can be started."""
    sockets = [end.fileno() for end in ends]
    facts = {
        "node": cluster.node,
        "host": cluster.hosts[cluster.node],
        "hosts": list(cluster.hosts),
        "sizes": list(cluster.sizes),
        "psframe": psframe.__version__,
        "library": _library(),
    }
    path = [str(Path(psframe.__file__).parents[1]), *(folder for folder in sys.path if folder)]
    given = fd, sockets, list(cluster.rendezvous.members), facts
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    words = [sys.executable, "-E", "-S", "-c", START.format(path=path, given=given)]
    subprocess.Popen(words, pass_fds=(fd, *sockets), start_new_session=True, **quiet)
