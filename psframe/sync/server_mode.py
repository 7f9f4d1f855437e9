"""Base of the modes with a server (:class:`ServerMode`): rank 0 applies posted gradients, workers pull parameters."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psframe import compiled
from psframe.memory.arena import Arena, Vectors
from psframe.optim import Updater
from psframe.record.clock import CLOCK
from psframe.sync.base import Mode, Parts
from psframe.sync.stores.base import Store
from psframe.sync.stores.mailbox import LAST, PULLED
from psframe.sync.traits import Traits


class ServerMode(Mode):
    """Server loop: rank 0 processes posts in order of arrival, until every worker has posted its end of the epoch.

    Rank 0 is the only one that writes to the store, and so the clock of its parameters is the number of its updates.
    A worker's post waits until its previous one is granted. A checkpoint holds the parameters and state of rank 0.
    """

    rows = 1  # vectors of a post
    waits = False  # True if a worker waits for rank 0 between steps, so that it may compute in its mail slot

    def __init__(self, store: str, averages_statistics: bool = False):
        super().__init__(
            Traits(
                "none",
                "dedicated",
                exchanges=False,
                store=store,
                averages_statistics=averages_statistics,
                survives=True,
                drops="gradients",
            )
        )

    def _allocate(self, parts: Parts) -> Arena:
        team, layout, allocator = parts.team, parts.layout, parts.allocator
        self.size, self.n_workers = layout.size, team.n_workers
        self.posts_a_turn = self.n_workers
        self._store: Store = self._make_store(parts, copies=2)
        self.mailbox = self._store.mailbox(self.rows)
        if team.worker is not None:
            return self._of_worker(parts)
        vectors = Vectors(
            self._store.params,
            allocator.zeros(layout.size, np.float32, "gradients"),  # only used to compile
            [allocator.zeros((parts.n_state, layout.size), np.float32, "optimizer")],
        )
        return Arena(layout, parts.n_state, allocator, vectors=vectors, shared=False)

    def _of_worker(self, parts: Parts) -> Arena:
        slot = self.mailbox.slot() if self.waits else None
        if slot is None:
            return Arena(parts.layout, 0, parts.allocator)
        params = parts.allocator.zeros(parts.layout.size, np.float32, "parameters")
        no_state = np.empty((0, parts.layout.size), np.float32)
        return Arena(parts.layout, 0, parts.allocator, vectors=Vectors([params], slot, [no_state]), shared=False)

    def open(self, update: Updater) -> None:
        self._update, self.whole = update, slice(0, self.size)
        self.clock = 0
        self._store.open()
        self._arrive()

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        if self._parts.team.worker is not None:
            yield from self.worker_turns(n_steps)
            return
        self.at_work = self.n_workers
        while self.at_work and not n_steps:  # continued after the epoch's last step: workers only post their end
            self.serve()
        step = 0
        while self.at_work:
            yield min(step, n_steps - 1), None
            step += 1

    def worker_turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        """Yield a worker's turns, as :meth:`turns`."""
        raise NotImplementedError

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        if self._parts.team.worker is not None:
            self.report(n_samples, lr, step)
            return True
        for _ in range(self.posts_a_turn):
            if self.at_work:
                self.serve()
        return True

    def serve(self) -> None:
        """Wait for one post, and process it."""
        worker = self.mailbox.collect()
        if self.mailbox.headers[worker, LAST]:
            self.at_work -= 1
            self.mailbox.ack(worker)
        else:
            self.take(worker)

    def report(self, n_samples: int, lr: float, step: int) -> None:
        """Post the gradients of a worker's turn."""
        raise NotImplementedError

    def take(self, worker: int) -> None:
        """Process a worker's post, and grant it at once or later. Rank 0."""
        raise NotImplementedError

    def drain(self) -> None:
        if self._parts.team.worker is not None:
            self.post((), 0, 0, 0, 0, 1)
            self._settled()
        self._meet_at(self._store)
        self._arrive()

    def _arrive(self) -> None:
        """Pull the epoch's initial parameters; no worker posts before all have them. All ranks must call."""
        self.began = self._pull()
        self._store.rest()

    def apply(self, mean: Any, lr: float, number: int, step: int) -> None:
        """Update the parameters by a mean gradient, in the copy that is not read, and make it current. Rank 0.

        ``number`` is the update's number, for the optimizer; ``step`` is the step of the gradient.
        """
        with self._store.writing:
            was_nonfinite = self._update.first_nonfinite_step
            self._update(self.whole, mean, lr, number)
            self._update.first_nonfinite_step = was_nonfinite or (self._update.first_nonfinite_step and step)
            self._arena.commit()
        self.clock += 1

    def keep(self) -> None:
        """Advance the clock with unchanged parameters. Rank 0."""
        with self._store.writing:
            self._arena.new_params[:], self._arena.new_state[:] = self._arena.params, self._arena.state
            self._arena.commit()
        self.clock += 1

    def age(self, worker: int) -> int:
        """Return the number of updates since the parameters that a worker's post was computed from. Rank 0."""
        return int(self.clock - self.mailbox.headers[worker, PULLED]) % (1 << 32)

    def is_dropped(self, worker: int, step: int) -> bool:
        """Return True if a worker's post is to be dropped, and record it. Rank 0."""
        if not self._parts.drops_nonfinite or compiled.elementwise.is_finite(self.mailbox.inbox[worker, 0]):
            return False
        self._update.first_nonfinite_step = self._update.first_nonfinite_step or step
        self._tally.skipped.append({"step": step, "ranks": [worker + 1]})
        return True

    def _pull(self) -> int:
        """Pull the current parameters on a worker; return their clock."""
        if self._parts.team.worker is None:
            return self.clock
        self._tally.pulled()
        return self._store.pull(self._arena.params)

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        """Post to rank 0, once it has granted this worker's previous post."""
        self._settled()
        self.mailbox.post(vectors, *note)

    def _settled(self) -> int:
        """Wait for rank 0's grant, count that as waiting, and return its word."""
        began = CLOCK.now()
        word = self.mailbox.wait_ack()
        self._tally.waited_since(began)
        return word
