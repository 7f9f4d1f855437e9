"""Modes with a server against their equations: ranks take turns, and NumPy does the same in one process."""

import time
from itertools import islice, product

import numpy as np

from psframe.cluster.joining import join
from psframe.optim import SGD
from tests.ranks.harness import ranks
from tests.ranks.play import (
    BATCH,
    LR,
    PLAIN,
    SIZE,
    START,
    STORES,
    Momentum,
    gradient,
    played,
    same,
    script,
    summed,
)
from tests.ranks.rig import Rig


@ranks(2, 3, 4)
def asynchronous_sgd_and_its_kin(world):
    cluster, n_steps, n_workers = join(world), 6, world.size - 1
    order = script(n_steps * n_workers, range(1, world.size))
    for store in STORES:
        for keys in ({}, {"compensate": True, "compensation": 0.3}):
            spec = {"mode": "async_ps", "store": store, **keys}
            rig = Rig(cluster, spec, optimizer=SGD(lr=0.1, momentum=0.5), n_steps=n_steps, **PLAIN)
            found = played(world, rig, order)
            w, rule = START, Momentum(0.5)
            for number, _ in enumerate(order):  # in turns nobody is stale: the delay is tested below
                step, share = divmod(number, n_workers)
                w = rule(w, gradient(share, step, w))
            same(world, found, w, spec)
            rig.close()


@ranks(2, 3, 4)
def bound_makes_a_gradient_its_share_of_the_step(world):
    cluster, n_steps, n_workers = join(world), 6, world.size - 1
    order = np.random.default_rng(6).permutation(np.repeat(np.arange(1, world.size), n_steps)).tolist()
    for store in STORES:
        spec = {"mode": "async_ps", "staleness": n_steps, "store": store}  # nobody waits
        optimizer = SGD(lr=0.1, momentum=0.5, weight_decay=0.01)
        rig = Rig(cluster, spec, optimizer=optimizer, n_steps=n_steps, **PLAIN)
        found = played(world, rig, order)
        w, rule, made = START, Momentum(0.5), [0] * world.size
        for rank in order:
            # a part of the rate, not of the gradient: or weights would decay once a worker
            w = rule(w, gradient(rank - 1, made[rank], w) + np.float32(0.01) * w, LR / np.float32(n_workers))
            made[rank] += 1
        same(world, found, w, spec)
        rig.close()


@ranks(3, 4)
def delayed_gradients_and_their_compensation(world):
    """All pull and compute; then, one after the other, all push: worker k's gradient is k updates old."""
    cluster, n_steps, n_workers = join(world), 5, world.size - 1
    for compensation in (0.0, 0.7):
        spec = {"mode": "async_ps", "compensate": bool(compensation), "compensation": compensation}
        rig = Rig(cluster, spec, optimizer=SGD(lr=0.1), n_steps=n_steps, **PLAIN)
        turns, worker = rig.mode.turns(n_steps), rig.team.worker
        if worker is None:
            next(turns)
        w = START
        for step in range(n_steps):
            for k in range(n_workers):  # they draw in this order
                if worker == k:
                    assert next(turns) == (step, k)
                    rig.arena.grads[:] = summed(k, step, rig.arena.params)
                world.Barrier()
            stale = w
            for k in range(n_workers):
                if worker == k:
                    rig.mode.step(BATCH * n_workers, float(LR), step + 1)
                elif worker is None:
                    rig.mode.serve()
                world.Barrier()
                g = gradient(k, step, stale)
                w = w - LR * (g + np.float32(compensation) * g * g * (w - stale))
        if worker is None:
            counts = {i: int(n) for i, n in enumerate(rig.tally.stale) if n}
            assert counts == dict.fromkeys(range(n_workers), n_steps), "the staleness of worker k is k"
        assert worker is None or next(turns, None) is None
        while worker is None and rig.mode.at_work:
            rig.mode.serve()
        rig.mode.drain()
        same(world, rig.arena.params, w, spec)
        rig.close()


def left_over(order, push):
    """Return the ranks that have something left to push when their turns in ``order`` are over."""
    return [rank for rank in set(order) if order.count(rank) % push]


class Noting:
    """SGD with momentum, as a user's own optimizer, which keeps the number of each of its steps."""

    n_state, lr = 1, 0.1

    def __init__(self, momentum):
        self.momentum, self.steps = np.float32(momentum), []

    def update(self, params, grads, state, lr, step):
        state[0] = self.momentum * state[0] + grads
        params -= np.float32(lr) * state[0]
        self.steps.append(step)


class Downpour:
    """The mode in NumPy, epoch by epoch, and the ages of the gradients in it, in updates."""

    def __init__(self, pull, push):
        self.pull, self.push, self.w, self.rule, self.n_updates, self.ages = pull, push, START, Momentum(0.5), 0, []

    def epoch(self, order, n_workers):
        """Take the turns in ``order``; at the end each rank that has something left pushes it."""
        own = {rank: [self.w, np.zeros(SIZE, np.float32), 0, 0, 0] for rank in order}
        for number, rank in enumerate(order):
            step, share = divmod(number, n_workers)
            params, kept, made, pulled, oldest = own[rank]
            params, pulled = (self.w, self.n_updates) if made % self.pull == 0 else (params, pulled)
            oldest = pulled if made % self.push == 0 else oldest
            g = gradient(share, step, params)
            own[rank] = [params - LR * g, kept + g, made + 1, pulled, oldest]
            if (made + 1) % self.push == 0:
                self._pushed(own[rank])
        for last in left_over(order, self.push):
            self._pushed(own[last])

    def _pushed(self, worker):
        self.ages.append(self.n_updates - worker[4])
        self.w, worker[1] = self.rule(self.w, worker[1]), np.zeros(SIZE, np.float32)
        self.n_updates += 1


@ranks(2, 3, 4)
def downpour(world):
    """Two epochs, of which all begin the second with a pull of what the first ended in."""
    cluster, n_steps, n_workers = join(world), 11, world.size - 1
    for store, (pull, push) in product(STORES, ((3, 2), (2, 3), (3, 1))):
        # were there several workers with something left at the end, nobody could say in which order they push it
        scripts = (script(n_steps * n_workers, range(1, world.size), seed) for seed in range(1000))
        orders = [*islice((order for order in scripts if len(left_over(order, push)) <= 1), 2)]
        spec = {"mode": "async_ps", "pull_every": pull, "push_every": push, "store": store}
        rig = Rig(cluster, spec, optimizer=Noting(0.5), n_steps=n_steps, **PLAIN)
        wanted = Downpour(pull, push)
        for order in orders:
            found = played(world, rig, order)
            wanted.epoch(order, n_workers)
            same(world, found, wanted.w, spec)
            ages, steps = world.bcast((rig.tally.stale.tolist(), rig.optimizer.steps))
            assert ages == np.bincount(wanted.ages, minlength=len(ages)).tolist(), spec
            wrong = [step - number for number, step in enumerate(steps, 1)]
            assert len(steps) >= n_steps * n_workers // push
            assert max(map(abs, wrong)) < n_workers, f"{spec}: steps of the optimizer are its updates, got {steps}"
            rig.optimizer.steps.clear()
        rig.close()


@ranks(3, 4)
def bound_of_0_is_the_synchronous_server(world):
    """A bound of 0 is sync_ps to the bit."""
    cluster, n_steps = join(world), 6
    for store in STORES:
        ends = {}
        for name, spec in {
            "sync_ps": {"mode": "sync_ps"},
            "bound": {"mode": "async_ps", "staleness": 0, "store": store},
        }.items():
            rig = Rig(cluster, spec, n_steps=n_steps, **PLAIN)
            rig.epoch(summed)
            rig.epoch(summed, first=n_steps)
            ends[name] = rig.arena.params.tobytes()
            rig.close()
        assert ends["sync_ps"] == ends["bound"], store


@ranks(3, 4)
def backup_workers_close_a_step_with_the_first(world):
    """The last worker begins every step, and always comes last: what it computes is dropped, and counts for nothing."""
    cluster, n_steps = join(world), 5
    last = world.size - 2
    for store in STORES:
        spec = {"mode": "sync_ps", "backup_workers": 1, "store": store}
        rig = Rig(cluster, spec, optimizer=SGD(lr=0.1), n_steps=n_steps, **PLAIN)
        rig.cluster.rendezvous.deadline_s = 120
        begun = cluster.link.share(8).view(np.int64)  # steps of the last worker
        seen = np.empty_like(rig.arena.params)

        def late(worker, step, params, rig=rig, begun=begun, seen=seen):
            if worker == last:
                begun[0] = step + 1
            while worker == last and rig.mode._store.pull(seen) == rig.mode.pulled:
                time.sleep(0.001)  # until the others have closed the step
            while begun[0] <= step:
                time.sleep(0.001)  # until the last one has pulled what it is too late with
            return summed(worker, step, params)

        rig.epoch(late)
        w = START
        for step in range(n_steps):
            w = w - LR * sum(gradient(worker, step, w) for worker in range(last)) / np.float32(last)
        assert world.bcast(rig.tally.dropped) == n_steps
        same(world, rig.arena.params, w, spec)
        rig.close()


@ranks(3, 4)
def bound_lets_nobody_further_ahead(world):
    """10,000 steps with random delays, watched from outside: by the steps that the workers have really made."""
    cluster = join(world)
    n_steps = 10_000 // (world.size - 1)
    for bound in (1, 3):
        rig = Rig(cluster, {"mode": "async_ps", "staleness": bound}, n_steps=n_steps, **PLAIN)
        made, random = cluster.link.share((world.size + 1) * 8).view(np.int64), np.random.default_rng(world.rank)

        def watched(worker, step, params, made=made, random=random, bound=bound):
            others = made[: world.size - 1]
            assert step - others.min() <= bound, "a worker began a step too early"
            if random.random() < 0.02:
                time.sleep(0.002 * random.random())
            while worker == 0 and step == n_steps // 2 and others.max() < step + 2:
                time.sleep(0.001)  # until another one is ahead
            made[worker] += 1
            return summed(worker, step, params)

        rig.epoch(watched)
        stale = world.allreduce(rig.tally.stale)
        assert stale.sum() == n_steps * (world.size - 1)
        assert stale[bound + 1 :].sum() == 0
        assert stale[1:].sum() > 0, "nobody was ever ahead"
        rig.close()
