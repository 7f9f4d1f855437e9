"""Sources of work (:class:`StaticShards`, :class:`SampleQueue`): the steps and shares that a rank computes next."""

from collections.abc import Iterator
from typing import Protocol

from psframe.cluster.stop_flag import Halt
from psframe.memory.arena import Arena
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Store


class WorkSource(Protocol):
    """Deals out the steps of an epoch, and knows how far all ranks have come when it is cut short."""

    def begin(self) -> None:
        """Begin an epoch, or what is left of one, on this rank."""

    def may_begin(self, step: int) -> bool:
        """Return False if this rank must end the epoch before a step. All ranks ask before each."""

    def stop(self) -> None:
        """Ask all ranks to end the epoch with the steps that have begun. Rank 0."""

    def done(self) -> int:
        """Return how many samples of the epoch are done, when every rank has ended it. Rank 0."""

    def salvaged(self) -> int:
        """Return how many are done where a worker died, when no rank trains any more. Rank 0."""


class StaticShards:
    """The same share of every step for each worker.

    Parameters
    ----------
    in_step : bool
        True if no rank begins a step before all have ended the one before.
    """

    def __init__(self, sampler: Sampler, halt: Halt, arena: Arena, in_step: bool):
        self.sampler, self.halt, self.arena, self.in_step = sampler, halt, arena, in_step
        self.version = 0  # steps that the arena had taken when the epoch began

    def begin(self) -> None:
        self.version = self.arena.taken

    def may_begin(self, step: int) -> bool:
        return self.halt.may(step, self.in_step)

    def stop(self) -> None:
        self.halt.stop()

    def done(self) -> int:
        return self.sampler.done_after(self.halt.begun)

    def salvaged(self) -> int:
        return self.sampler.done_after(self.arena.taken - self.version)


class SampleQueue:
    """Shares of an epoch's steps, numbered, in the order in which ranks ask for them.

    A slow worker so computes fewer of them, and keeps nobody waiting.

    Parameters
    ----------
    dealer : Store
        Gives out the numbers.
    """

    def __init__(self, dealer: Store, sampler: Sampler):
        self.dealer, self.sampler = dealer, sampler
        self.n_drawn: int | None = None  # when :meth:`stop` was called

    def begin(self) -> None:
        self.n_drawn = None

    def turns(self, n_steps: int) -> Iterator[tuple[int, int, int]]:
        """Yield steps of an epoch, workers' shares, and how many samples these have, until all are given out."""
        while (number := self.dealer.draw()) < n_steps * self.sampler.n_workers:
            step, worker = divmod(number, self.sampler.n_workers)
            if n_own := self.sampler.size_of(step, worker):  # the last step may have fewer samples than workers
                yield step, worker, n_own

    def may_begin(self, step: int) -> bool:
        return True  # a share that was given out is computed

    def stop(self) -> None:
        if self.n_drawn is None:
            self.n_drawn = self.dealer.close_draw()

    def done(self) -> int:
        """Return how many samples of the epoch were given out, after :meth:`stop`. Rank 0."""
        if self.n_drawn is None or self.n_drawn >= self.sampler.n_steps * self.sampler.n_workers:
            return self.sampler.n_samples
        return self.sampler.share(*divmod(self.n_drawn, self.sampler.n_workers)).start

    def salvaged(self) -> int:
        self.stop()
        return self.done()
