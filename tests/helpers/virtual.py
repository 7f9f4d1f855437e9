"""Jobs of virtual ranks, with a mode and no network, of which one rank may be killed (:func:`play`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from psframe.cluster import communicators
from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.optim import SGD
from psframe.record.clock import CLOCK
from psframe.record.flight import RANK, RING
from psframe.sync.elastic import Elastic
from psframe.virtual import engines
from psframe.virtual.job import Job
from psframe.virtual.scheduler import Scheduler
from psframe.virtual.site import site, world
from tests.helpers.launcher import ROOT
from tests.ranks.rig import Rig

needs_simgrid = pytest.mark.skipif(
    engines.interpreter() is None, reason="SimGrid's Python module is not here (Debian: python3-simgrid)"
)

N_STEPS, N_EPOCHS = 3, 2
SIZE, APART = 6 * 1024, 200  #: of the vector: six pages, so that several ranks reduce, and between two marks
#: modules of which a rank may be interrupted before each line
LINES_OF = tuple(
    f"{ROOT}/{name}"
    for name in (
        *("psframe/sync/", "tests/helpers/store_promises"),
        *(f"psframe/collectives/{file}" for file in ("shared", "node_vectors", "between", "lanes", "buffer")),
    )
)


def on_ranks(n, body, order, n_nodes=1, kills=None):
    """Return what ``body(world)`` returns on each of ``n`` virtual ranks of so many nodes, and their scheduler."""
    ranks = Scheduler(n, order, kills)
    every = world(ranks, Job([rank * n_nodes // n for rank in range(n)], site))
    try:
        with CLOCK.virtual(CLOCK.now, ranks.sleep):
            return ranks.run(lambda number: body(every[number])), ranks
    finally:
        RING.put(RANK, 0)  # which they have shared, and what is logged later tells
        RING.step(0, 0)


def play(n, body, order, n_nodes=1):
    """Return the same of ``body(cluster)``."""
    return on_ranks(n, lambda comm: body(join(comm)), order, n_nodes)


@dataclass
class End:
    """How training has ended on a rank.

    Attributes
    ----------
    params : ndarray
        Parameters at the end, or the state to go on from; None on a rank that has none.
    rig : Marked
    was_lost : bool
        True if this rank has lost another one.
    """

    params: np.ndarray | None
    rig: Any
    was_lost: bool = False


class Counted(Elastic):
    """An elastic force that sums what it takes from this rank's parameters: :attr:`moved`."""

    def __call__(self, x):
        before = x.copy()
        super().__call__(x)
        self.moved += before - x


class Marked(Rig):
    """A mode whose gradients are marks: each is -1 at a number of its own, and 0 elsewhere.

    So parameters that begin at 0, and to which they are added as they are, tell which gradients they have had, and how
    often.

    Attributes
    ----------
    read : list of (epoch, step, worker, ndarray)
        Parameters that each gradient of this rank was computed from.
    """

    def __init__(self, cluster, spec, form, optimizer=None):
        start = np.zeros(SIZE, np.float32)
        optimizer = optimizer or SGD(lr=1.0)
        super().__init__(cluster, spec, form, shapes=((SIZE,),), n_steps=N_STEPS, start=start, optimizer=optimizer)
        self.read = []
        if hasattr(self.mode, "exchange"):  # with a centre, on a rank that has exchanges with it
            self.mode.exchange.__class__, self.mode.exchange.moved = Counted, np.zeros(SIZE, np.float32)

    def number(self, epoch, step, worker):
        """Return the place of a mark."""
        return APART * ((epoch * N_STEPS + step) * self.team.n_workers + worker)

    def marks(self, params):
        """Return the marks in parameters, by epoch, step and worker."""
        n_workers = self.team.n_workers
        return -params[: APART * N_EPOCHS * N_STEPS * n_workers : APART].reshape(N_EPOCHS, N_STEPS, n_workers)

    def gradient(self, worker, step, params):
        """Return the sum of the gradients of a worker's share of a step."""
        epoch = self.sampler.epoch
        self.read.append((epoch, step, worker, params.copy()))
        gradient = np.zeros(SIZE, np.float32)
        gradient[self.number(epoch, step, worker)] = self.sampler.size_of(step, worker)
        return gradient

    def trained(self, dies_at=0):
        """Train, and return the :class:`End`; this rank is killed at a point of its training, unless that is 0."""
        ranks = self.cluster.comm.ranks
        ranks.interrupt_in(LINES_OF)
        if dies_at:
            ranks.kills[ranks.current.number] = ranks.current.n_points + dies_at
        try:
            for epoch in range(N_EPOCHS):
                self.epoch(self.gradient, 1.0, first=epoch * N_STEPS)
            self.cluster.barrier()
            end = End(self.arena.params.copy(), self)
            self.close()
            return end
        except PeerLost:
            communicators.revoke()
        return End(self.mode.state().params.copy() if self.mode.holds_state else None, self, was_lost=True)
