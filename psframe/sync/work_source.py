"""Sources of work (:class:`StaticShards`, :class:`SampleQueue`): the next steps and shares of a rank."""

from collections.abc import Iterator
from typing import Protocol

from psframe.cluster.stop_flag import StopFlag
from psframe.memory.arena import Arena
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Tickets


class WorkSource(Protocol):
    """Assignment of an epoch's steps to ranks, with the progress of all ranks if the epoch is cut short."""

    def begin(self) -> None:
        """Begin an epoch, or the rest of one, on this rank."""

    def may_begin(self, step: int) -> bool:
        """Return False if this rank must end the epoch before ``step``. All ranks call before each step."""

    def stop(self) -> None:
        """Ask all ranks to end the epoch with the steps that have begun. Rank 0 calls."""

    def done(self) -> int:
        """Return the number of samples of the epoch that are done, once every rank has ended it. Rank 0 calls."""

    def salvaged(self) -> int:
        """Return the number of samples done after a rank died, once no rank trains. Ranks that hold the state call."""


def steps(work: WorkSource, n_steps: int) -> Iterator[int]:
    """Yield the steps of an epoch, until the last or until all ranks were asked to stop."""
    for step in range(n_steps):
        if not work.may_begin(step):
            return
        yield step


class StaticShards:
    """Static assignment: each worker computes its own share of every step.

    Parameters
    ----------
    same_each_step : bool
        True if no rank begins a step before all have ended the previous one.
    """

    def __init__(self, sampler: Sampler, halt: StopFlag, arena: Arena, same_each_step: bool):
        self.sampler, self.halt, self.arena, self.same_each_step = sampler, halt, arena, same_each_step
        self.version = 0  # steps committed or dropped before the epoch

    def begin(self) -> None:
        self.version = self.arena.steps_ended

    def may_begin(self, step: int) -> bool:
        return self.halt.may(step, self.same_each_step)

    def stop(self) -> None:
        self.halt.stop()

    def done(self) -> int:
        if self.halt.several and not self.same_each_step:
            return self.sampler.n_samples  # no node knows how far the others are, so every step has begun
        return self.sampler.done_after(self.halt.begun)

    def salvaged(self) -> int:
        return self.sampler.done_after(self.arena.steps_ended - self.version)


class SampleQueue:
    """Dynamic assignment: the shares of an epoch's steps are numbered, and ranks draw the numbers in order.

    A slow worker computes fewer shares, and delays nobody.

    Parameters
    ----------
    tickets : Tickets
        The numbers, of a store.
    """

    def __init__(self, tickets: Tickets, sampler: Sampler):
        self.tickets, self.sampler = tickets, sampler
        self.n_drawn: int | None = None  # until :meth:`stop`; None before it

    def begin(self) -> None:
        self.n_drawn = None

    def turns(self, n_steps: int) -> Iterator[tuple[int, int, int]]:
        """Yield (step, worker, number of samples) of each share drawn by this rank, until all shares are drawn."""
        while (number := self.tickets.next()) < n_steps * self.sampler.n_workers:
            step, worker = divmod(number, self.sampler.n_workers)
            if n_own := self.sampler.size_of(step, worker):  # the last step may have fewer samples than workers
                yield step, worker, n_own

    def may_begin(self, step: int) -> bool:
        return True  # a share that was drawn is computed

    def stop(self) -> None:
        if self.n_drawn is None:
            self.n_drawn = self.tickets.close()

    def done(self) -> int:
        """Return the number of samples whose shares were drawn, after :meth:`stop`. Rank 0 calls."""
        if self.n_drawn is None or self.n_drawn >= self.sampler.n_steps * self.sampler.n_workers:
            return self.sampler.n_samples
        return self.sampler.share(*divmod(self.n_drawn, self.sampler.n_workers)).start

    def salvaged(self) -> int:
        self.stop()
        return self.done()
