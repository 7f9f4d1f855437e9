"""Shares of a step by the workers' measured speed (:class:`Balance`), under ``sync.balance: speed``."""

import struct
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from statistics import median
from typing import Protocol

from psframe.cluster.cluster import Cluster

WINDOW = 16  # steps that a measurement is the median of
LONGEST = 128  # steps between two measurements, where shares have long been right
GAIN = 0.05  # least part of a step's time that other shares must save; noise alone promises less
MESSAGE = struct.Struct("=qd")  # a worker, -1 for a rank that is none, and its seconds a sample


class Divisible(Protocol):
    """Sampler whose shares of a step may differ from worker to worker.

    Attributes
    ----------
    n_workers : int
    sizes, even : list of int
        Samples, or blocks of samples, of each worker in a full step: now, and to begin with.
    most : int
        Largest of them that a worker has memory for.
    shares : list of int
        Samples of each worker in a full step.
    """

    n_workers: int

    @property
    def sizes(self) -> list[int]: ...

    @property
    def even(self) -> list[int]: ...

    @property
    def most(self) -> int: ...

    @property
    def shares(self) -> list[int]: ...

    def divide(self, sizes: list[int]) -> bool:
        """Give the workers shares of other sizes from the next step on; return True if any has changed."""


class NoBalance:
    """Shares that stay as they are (a :class:`Balance`)."""

    shares: Sequence[int] = ()
    sizes: Sequence[int] = ()

    def divide(self, sizes: Sequence[int]) -> None:
        """Divide nothing."""

    def begin(self) -> None:
        """Begin nothing."""

    def note(self, n_samples: int, seconds: float) -> None:
        """Note nothing."""

    def after_step(self) -> None:
        """Change nothing."""


NO_BALANCE = NoBalance()


class Balance:
    """Controller of the shares: measures the seconds a sample of each worker, and divides a step in proportion.

    A step lasts as long as its slowest worker. The samples of a step over all workers stay the same, so does their
    order; only who computes them changes. All ranks compute the same shares from the same measurements.

    Parameters
    ----------
    sampler : Divisible
        Its shares are changed in place, on all ranks before the same step.
    worker : int or None
        This rank's number among the workers; None on a server.
    """

    def __init__(self, sampler: Divisible, cluster: Cluster, worker: int | None):
        self.sampler, self.cluster, self.worker = sampler, cluster, worker
        self.seconds: list[float] = []  # a sample, of the last steps
        self.begin()

    @property
    def shares(self) -> list[int]:
        """Samples of each worker in a full step."""
        return self.sampler.shares

    @property
    def sizes(self) -> list[int]:
        """Samples, or blocks, of each worker in a full step."""
        return self.sampler.sizes

    def divide(self, sizes: Sequence[int]) -> None:
        """Go on from these sizes; of an even division if there are none."""
        self.sampler.divide(list(sizes) or self.sampler.even)

    def begin(self) -> None:
        """Begin an epoch, in which the first measurement is not long in coming. All ranks must call."""
        self.n_steps, self.due = 0, WINDOW
        self.seconds.clear()

    def note(self, n_samples: int, seconds: float) -> None:
        """Note the time of this worker's share of a step, from its first sample to the exchange, but for its waits."""
        if n_samples:
            self.seconds.append(seconds / n_samples)

    def after_step(self) -> None:
        """Change the shares if they are due and worth it. All ranks must call, after every step."""
        self.n_steps += 1
        if self.n_steps < self.due:
            return
        sampler, own = self.sampler, median(self.seconds[-WINDOW:]) if self.seconds else 0.0
        speeds = [0.0] * sampler.n_workers
        message = MESSAGE.pack(-1 if self.worker is None else self.worker, own)
        for worker, seconds in map(MESSAGE.unpack, self.cluster.allgather_in_time(message)):
            if worker >= 0:
                speeds[worker] = 1 / seconds if seconds > 0 else 0.0
        changed = all(speeds) and sampler.divide(better(sampler.sizes, speeds, sampler.most))
        self.due = WINDOW if changed else min(2 * self.due, LONGEST)
        self.n_steps = 0
        self.seconds.clear()


def better(sizes: Sequence[int], speeds: Sequence[float], most: int) -> list[int]:
    """Return shares of a step that take less time, or ``sizes`` if none would save :data:`GAIN` of it.

    Parameters
    ----------
    sizes : sequence of int
        Samples, or blocks, of each worker now.
    speeds : sequence of float
        Speeds of the workers, above 0.
    most : int
        Largest size of a worker; at least the mean of ``sizes``.
    """
    proposed = proportional(sum(sizes), speeds, most)
    before, after = (max(n / speed for n, speed in zip(of, speeds, strict=True)) for of in (sizes, proposed))
    return proposed if after < (1 - GAIN) * before else list(sizes)


def proportional(total: int, speeds: Sequence[float], most: int) -> list[int]:
    """Return whole shares of ``total``, each from 1 to ``most``, of which the slowest ends as early as can be.

    Shares in proportion to ``speeds``, rounded down; of what is left, each sample goes to the worker that would have
    done it first (D'Hondt's method). ``total`` lies between all 1 and all ``most``.
    """
    of_all = sum(speeds)
    shares = [min(most, max(1, int(total * (speed / of_all)))) for speed in speeds]
    ends = [((shares[k] + 1) / speed, k) for k, speed in enumerate(speeds) if shares[k] < most]
    heapify(ends)
    for _ in range(total - sum(shares)):
        _, k = heappop(ends)
        shares[k] += 1
        if shares[k] < most:
            heappush(ends, ((shares[k] + 1) / speeds[k], k))
    for _ in range(sum(shares) - total):  # as some were raised to 1
        longest = max((k for k in range(len(speeds)) if shares[k] > 1), key=lambda k: shares[k] / speeds[k])
        shares[longest] -= 1
    return shares
