"""Phases and events of a rank (:data:`RING`): their kinds, and what a reader finds in the memory of a ring.

The ring is in this process's own memory until :mod:`psframe.cluster.flight.recorder` moves it to the node's.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from psframe import compiled

#: kinds of phases; the first number of a step is its own, that of a pass its layer's place, of MPI a root or peer
PLAN, READ, ALLOCATE, COMPILE, EPOCH, STEP, DATA, FORWARD, BACKWARD, EXCHANGE = range(1, 11)
EVALUATE, CHECKPOINT, RECORD, CALLBACK, PAUSE, END, SPARE = range(11, 18)
#: events that are no phases: page faults in a step, and those of them that needed a disk; and a signal's number
FAULTS, SIGNAL = compiled.flight.FAULTS, 25
GATE, SOCKET, NODES, STORE = range(32, 36)  # waits for ranks of the node, at its start and end, for nodes, for a disk
MPI = 64  # and above: calls of MPI, by their place in CALLS

NAMES = {
    PLAN: "the plan of the run",
    READ: "reading the data",
    ALLOCATE: "allocating memory",
    COMPILE: "compiling",
    EPOCH: "an epoch",
    STEP: "a step",
    DATA: "loading a batch",
    FORWARD: "forward",
    BACKWARD: "backward",
    EXCHANGE: "the exchange",
    EVALUATE: "the evaluation",
    CHECKPOINT: "a checkpoint",
    RECORD: "the record of an epoch",
    CALLBACK: "a callback",
    PAUSE: "an agreement of the ranks",
    END: "the end of the run",
    SPARE: "waiting as a spare",
    FAULTS: "page faults",
    SIGNAL: "a signal",
    GATE: "a wait at a gate",
    SOCKET: "a wait for the node's ranks",
    NODES: "a wait for other nodes",
    STORE: "a wait for the disk",
}

#: MPI's calls in which a rank can wait for others
CALLS = (
    *("Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Gatherv", "Scatter", "Scatterv"),
    *("Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scan", "Exscan", "Send", "Ssend", "Rsend", "Recv", "Sendrecv", "Sendrecv_replace", "Probe", "Mprobe"),
    *("barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall", "scan", "exscan"),
    *("send", "ssend", "recv", "sendrecv", "probe", "mprobe"),
    *("Split", "Split_type", "Dup", "Create", "Create_group", "Free", "Shrink", "Agree"),
    *("Win.Free", "Win.Flush", "Win.Flush_all", "Win.Lock", "Win.Lock_all", "Win.Unlock"),
    *("Win.Unlock_all", "Win.Fence", "Win.Fetch_and_op", "Win.Get", "Win.Get_accumulate", "Win.Accumulate", "Win.Sync"),
    "Request.Wait",
)
NAMES |= {MPI + number: f"MPI {name}" for number, name in enumerate(CALLS)}
WAIT = MPI + CALLS.index("Request.Wait")
#: phases in which a rank waits for other ranks
WAITS = frozenset({GATE, SOCKET, NODES, *range(MPI, MPI + len(CALLS))})
#: phases of which another rank must take part in the same one, with as many bytes
COLLECTIVES = frozenset(
    MPI + number
    for number, name in enumerate(CALLS)
    if not name.startswith(("Win.", "Request.")) and not any(of in name.lower() for of in ("send", "recv", "probe"))
)

RING = compiled.flight.Ring()  #: of this process

#: bytes of a ring, and words of its header
N_BYTES = compiled.flight.N_BYTES
PID, RANK, STATE, SPACE = compiled.flight.PID, compiled.flight.RANK, compiled.flight.STATE, compiled.flight.SPACE
WRITES = compiled.flight.WRITES  #: since when a thread beside the phases writes a checkpoint, 0 for none

#: states of a rank, in its header
STARTS, TRAINS, ENDED = 1, 2, 3

T = TypeVar("T")


@contextmanager
def phase(kind: int, a: int = 0, b: int = 0) -> Iterator[None]:
    """Note a phase of this rank around a context.

    It stays open where an exception leaves it whose attribute ``stays`` is True, so that an incident tells of it.
    """
    depth = RING.enter(kind, a, b)
    try:
        yield
    except BaseException as error:
        if not getattr(error, "stays", False):
            RING.leave(depth)
        raise
    RING.leave(depth)


def in_phase(kind: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator of functions that are one phase, as :func:`phase`."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def phased(*given: Any, **named: Any) -> T:
            with phase(kind):
                return function(*given, **named)

        return phased

    return decorate


def space() -> int:
    """Return the number of this process's PID namespace: process numbers mean nothing in another. 0 if it is hidden."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


@dataclass(frozen=True)
class Read:
    """What the memory of a ring says.

    Attributes
    ----------
    header : dict of str to int
    phases : list of (kind, a, b, began)
        Open ones, the outermost first; times in nanoseconds of CLOCK_MONOTONIC.
    events : list of (kind, nested, a, b, began, ended)
        The last ones, the oldest first.
    """

    header: dict[str, int]
    phases: list[tuple[int, ...]]
    events: list[tuple[int, ...]]


def read(memory: memoryview, n_events: int) -> Read:
    """Return the phases and the last ``n_events`` events in a ring's memory (N_BYTES,), of which a rank may write."""
    flight = compiled.flight
    words = memory[: flight.N_BYTES].cast("q")
    names = ("PID", "RANK", "STATE", "EVENTS", "DEPTH", "STEP", "EPOCH", "SPACE", "WRITES")
    header = {name.lower(): words[getattr(flight, name)] for name in names}
    depth = min(max(header["depth"], 0), flight.DEEPEST)
    frames = (words[flight.FRAMES + flight.FRAME * i :][: flight.FRAME] for i in range(depth))
    phases: list[tuple[int, ...]] = [tuple(frame) for frame in frames]
    n, events = header["events"], list[tuple[int, ...]]()
    for number in range(max(0, n - min(n_events, flight.KEPT)), n):
        at = flight.RING + number % flight.KEPT * flight.EVENT
        word, a, b, began, ended = words[at : at + flight.EVENT]
        events.append((word & 0xFFFF, word >> 16, a, b, began, ended))
    return Read(header, phases, events)


def named(phases: Sequence[tuple[int, ...]]) -> str:
    """Return the innermost of open phases in words, of a pass with its layer's place; "between phases" without any."""
    if not phases:
        return "between phases"
    kind, a, *_ = phases[-1]
    name = NAMES.get(kind, "?")
    return f"{name}, layer {a}" if kind in (FORWARD, BACKWARD) else name
