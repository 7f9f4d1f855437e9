"""Strategies as a user would write them."""

import numpy as np

from psframe.collectives.base import BaseCollective
from psframe.collectives.buffer import Buffer
from psframe.collectives.traits import Traits
from psframe.config.registry import Positive, PositiveInt
from psframe.memory import placement
from psframe.memory.pages import Policy
from psframe.record.traffic import Traffic
from tests.helpers.bfloat16_model import rounded, widened


class Lazy:
    """Every rank keeps adding its gradients, and only every few steps they are exchanged and applied."""

    server = None

    def __init__(self, *, every: PositiveInt = 2):
        self.every = every

    def open(self, arena, collective, update):
        self.arena, self.collective, self.update = arena, collective, update
        self.kept, self.n_kept = np.zeros_like(arena.grads), 0
        collective.broadcast(arena.params)

    def step(self, n_samples, lr, step):
        self.kept += self.arena.grads
        self.n_kept += n_samples
        if step % self.every == 0:
            for segment, gradient in self.collective.allreduce_mean(self.kept, self.n_kept):
                self.update(segment, gradient, lr, step)
            self.kept[:], self.n_kept = 0, 0


class Alone(Lazy):
    """Every rank applies its own gradients alone, which leaves each with parameters of its own."""

    def step(self, n_samples, lr, step):
        self.update(slice(0, len(self.arena.grads)), self.arena.grads, lr, step)


class SignSGD:
    """w <- w - lr sign(g)."""

    n_state = 0

    def __init__(self, *, lr: Positive):
        self.lr = lr

    def update(self, params, grads, state, lr, step):
        params -= np.float32(lr) * np.sign(grads)


class Masterless:
    """SGD with momentum 0.9 on parameters that are rounded to bfloat16 after each step."""

    n_state = 1

    def __init__(self, *, lr: Positive):
        self.lr = lr

    def update(self, params, grads, state, lr, step):
        state[0] = np.float32(0.9) * state[0] + grads
        params[:] = widened(rounded(params - np.float32(lr) * state[0]))


class ByNorm(SignSGD):
    """w <- w - lr g / |g|, which depends on all numbers of a slice."""

    def update(self, params, grads, state, lr, step):
        params -= np.float32(lr) * grads / np.linalg.norm(grads)


class Upwards(placement.BasePlacement):
    """A placement: on the NUMA node with the highest number."""

    def policy(self, site, shared):
        return Policy("bind", (max(site.topology.memory),), self.huge_pages)


class Unweighted(placement.BasePlacement):
    """A placement in a proportion that it does not give."""

    def policy(self, site, shared):
        return Policy("weighted", site.topology.memory, self.huge_pages)


class Nowhere(placement.BasePlacement):
    """A placement that asks for a NUMA node and does nothing to get there."""

    def policy(self, site, shared):
        return Policy("default", (4000,), self.huge_pages)


class Offline(placement.BasePlacement):
    """A placement on a NUMA node that is not there."""

    def policy(self, site, shared):
        return Policy("bind", (4000,))


class Scratch(Buffer):
    """A collective that takes memory for something that is no role."""

    def __init__(self, team, size, allocator, reproducible):
        super().__init__(team, size, allocator, reproducible)
        allocator.zeros(size, "float32", "scratch")


class Rows(BaseCollective):
    """A collective with the bits of psframe's own: all workers' gradients as rows, and their canonical mean."""

    traits = Traits(supports_tree_sum=True, broadcasts_any_size=True)

    def __init__(self, team, size, allocator, reproducible):
        super().__init__(team, size, allocator, reproducible)
        n_rows = team.comm.size if team.applies_updates else 0
        self._rows = allocator.zeros((n_rows, size), "float32", "exchange")

    def broadcast(self, params):
        self._comm.Bcast(params)

    def gather_mean(self, grads, divisor):
        self._comm.Gather(grads, self._rows)
        if self._team.applies_updates:
            yield self._mean(divisor)

    def allreduce_mean(self, grads, divisor):
        self._comm.Allgather(grads, self._rows)
        yield self._mean(divisor)

    def _mean(self, divisor):
        rows = [self._rows[rank] for rank in self._team.workers]  # a dedicated server's is no gradient
        return slice(0, self._size), self.mean_of(rows).over(divisor)


class Told:
    """A collective of three methods, which counts 1000 bytes that it sends in each step, or nothing at all."""

    def __init__(self, team, size, allocator, reproducible, *, counts: bool = True):
        self.team, self.total = team, allocator.zeros(size, "float32", "exchange")
        if counts:
            self.traffic = Traffic()

    def broadcast(self, params):
        self.team.comm.Bcast(params)

    def gather_mean(self, grads, divisor):
        means = [*self.allreduce_mean(grads, divisor)]
        yield from means if self.team.applies_updates else ()

    def allreduce_mean(self, grads, divisor):
        if self.team.worker is None:
            grads[:] = 0
        self.team.comm.Allreduce(grads, self.total)
        if hasattr(self, "traffic"):
            self.traffic.send(1000)
        self.total /= divisor
        yield slice(0, len(grads)), self.total


class Words(placement.BasePlacement):
    """A placement that answers with words."""

    def policy(self, site, shared):
        return "near"


#: what :func:`data` makes, so that a test can change it behind a config's back
DATA = {"seed": 0, "n": 60, "wrong": None}


def data():
    from psframe.datasets.base import Dataset, held

    random = np.random.default_rng(DATA["seed"])
    images, labels = random.random((DATA["n"] + 12, 2, 8, 9), np.float32), np.arange(DATA["n"] + 12) % 5
    if DATA["wrong"] is not None:
        images[12 + 7, 1, 2, 3] = DATA["wrong"]
    train, test = held(images[12:], labels[12:]), held(images[:12], labels[:12])
    return Dataset(shape=(2, 8, 9), dtype="float32", n_classes=5, train=train, test=test)
