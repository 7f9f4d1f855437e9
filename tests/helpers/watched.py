"""A node's rings that a test fills, and the watchdog that looks at them (:class:`Node`)."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from psframe import compiled
from psframe.cluster.flight.watchdog import Watchdog
from psframe.record import flight

DEADLINE_S = 100.0  # of which a look is one second, the most
LOOKS = 100
BCAST, ALLREDUCE = (flight.MPI + flight.CALLS.index(name) for name in ("bcast", "Allreduce"))


@contextmanager
def process(code):
    """Start a process that runs ``code``; it ends with the context."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-S", "-c", f"print(flush=True)\n{code}"], **pipes) as child:
        try:
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def wait(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "it does not compute"
        time.sleep(0.005)


class Node:
    """Ranks 10 and above of a node, which train, and the watchdog of one of them."""

    def __init__(self, n, me=0, is_whole=True, deadline_s=DEADLINE_S, state=flight.TRAINS):
        self.memory = np.zeros((n, flight.N_BYTES), np.uint8)
        self.rings = [compiled.flight.Ring() for _ in range(n)]
        for ring, memory in zip(self.rings, self.memory, strict=True):
            ring.move(memory)
            ring.put(flight.PID, os.getpid())
            ring.put(flight.SPACE, flight.space())
            ring.put(flight.STATE, state)
        self.told, self.ended = [], []
        tell = SimpleNamespace(tell=lambda: not self.told and not self.told.append(True))
        members = [*range(10, 10 + n)]
        self.meeting = SimpleNamespace(members=members, names=members, me=me, deadline_s=deadline_s, told_at=tell)
        self.watchdog = Watchdog(self.memory.reshape(-1).data, self.meeting, is_whole, self.ended.append)

    def enter(self, kind, *numbers):
        for number in numbers:
            self.rings[number].enter(kind)
        return self

    def silent(self, looks):
        """Check that so many looks tell nothing."""
        for look in range(looks):
            assert self.watchdog.look() is None, look
        return self

    def late(self, ranks, *words):
        """Check that a rank is told of as late, once a rank has waited for the deadline and no sooner."""
        self.silent(LOOKS)
        self.names(ranks, *words)

    def names(self, ranks, *words):
        lost = self.watchdog.look()
        assert lost is not None
        assert (lost.ranks, lost.dead, lost.speaks) == (tuple(ranks), False, True)
        if not any("(PSFRAME_START_S)" in word for word in words):
            words = ["for 100 s (sync.deadline_s)", *words]
        assert all(word in str(lost) for word in words), str(lost)
