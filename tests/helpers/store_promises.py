"""Promises of the stores and their mailboxes in every order of few steps (:data:`STORE_PROMISES`), on virtual ranks."""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from psframe.cluster.roles import Team
from psframe.record.traffic import Traffic
from psframe.sync.stores.base import make
from psframe.train.assembly.allocate import build_measured
from psframe.virtual.orders import schedules
from tests.helpers.virtual import LINES_OF, play

SIZE = 2


@dataclass(frozen=True, eq=False)
class StorePromise:
    """What ranks do with a store, and check meanwhile.

    Attributes
    ----------
    does : callable
        ``does(store, rank)``.
    """

    does: Any
    store: str
    copies: int
    n: int = 3
    preemptions: int = 1

    def __str__(self):
        return f"{self.store} store: {self.does.__name__}"

    def tries(self):
        """Yield checks, of one order each."""
        for order in schedules(self.preemptions):
            yield partial(self.hold, order)

    def hold(self, order):
        """Check in an order."""
        play(self.n, partial(self._on_rank, order), order)

    def _on_rank(self, order, cluster):
        team = Team(cluster.sizes, "dedicated", comm=cluster.comm, cluster=cluster)
        store = build_measured(cluster, partial(self._made, team))
        if cluster.rank == 0:
            store.params[0][:] = 0
        store.open()
        store.rest()
        cluster.comm.ranks.interrupt_in(LINES_OF)
        with order.counting():
            self.does(store, cluster.rank)
        store.rest()
        store.close()

    def _made(self, team, allocator):
        store = make(self.store, team, SIZE, allocator, self.copies, Traffic())
        store.box = store.mailbox(1) if self.copies == 2 else None
        return store


def pulls_are_of_one_clock(store, rank):
    """The writer writes its numbers one by one, and each number is the clock that it makes current.

    A pull may be overtaken by one update, or by more than there are copies.
    """
    out = np.empty(SIZE, np.float32)
    for numbers in ([1], [2, 3, 4]):
        for number in numbers if rank == 0 else ():
            with store.writing:
                written = store.params[number % 2]
                written[0] = number
                written[1] = number
        if rank:
            clock = store.pull(out)
            assert (out == clock).all(), (clock, out)
        store.rest()


def pushes_count_once(store, rank):
    """Each has a clock of its own, and a pull has at least what was pushed before it."""
    out = np.empty(SIZE, np.float32)
    before = []
    for number in range(2):
        before.append(store.push(np.float32([1, 100**rank])))
        clock = store.pull(out)
        assert clock >= number + 1
        assert out[0] >= clock, (out, clock)
    clocks = store._team.comm.allgather(before)
    assert sorted(chain(*clocks)) == list(range(6)), clocks
    store.pull(out)
    assert out.tolist() == [6, 2 * (1 + 100 + 10000)], out


def tickets_are_given_once(store, rank):
    drawn = [store.tickets.next() for _ in range(3)]
    assert drawn == sorted(drawn)
    every = store._team.comm.allgather(drawn)
    assert sorted(chain(*every)) == list(range(9)), every
    store.rest()
    assert store.tickets.next() < 3


def posts_arrive_once(store, rank):
    """In the order in which a worker posts them, and none is overwritten before it is granted."""
    box, worker = store.box, store._team.worker
    for number in range(3) if rank else ():
        box.post([np.full(SIZE, 10 * worker + number, np.float32)], 1, 0.5, number + 1, number, 0)
        if number < 2:
            assert box.wait_ack() == 10 * worker + number
    seen = {0: [], 1: []}
    for _ in range(6 if rank == 0 else 0):
        sender = box.collect()
        first, step = float(box.inbox[sender, 0, 0]), int(box.headers[sender, 2])
        assert step == len(seen[sender]) + 1
        seen[sender].append(first)
        assert (box.inbox[sender, 0] == first).all()
        box.ack(sender, int(first))
    assert rank or seen == {0: [0, 1, 2], 1: [10, 11, 12]}, seen


STORE_PROMISES = [
    StorePromise(does, store, copies)
    for store in ("shared", "window")
    for does, copies in (
        (pulls_are_of_one_clock, 2),
        (pushes_count_once, 1),
        (tickets_are_given_once, 1),
        (posts_arrive_once, 2),
    )
]
