"""Modes with a server against their equations: ranks take turns, and NumPy does the same in one process."""

import time

import numpy as np

from psframe.cluster.cluster import join
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


@ranks(2, 3, 4)
def downpour(world):
    cluster, n_steps, n_workers = join(world), 9, world.size - 1
    pull, push = 3, 2
    # were there several workers with something left at the end, nobody could say in which order they push it
    scripts = (script(n_steps * n_workers, range(1, world.size), seed) for seed in range(1000))
    order = next(order for order in scripts if len(left_over(order, push)) <= 1)
    for store in STORES:
        spec = {"mode": "async_ps", "pull_every": pull, "push_every": push, "store": store}
        rig = Rig(cluster, spec, optimizer=SGD(lr=0.1, momentum=0.5), n_steps=n_steps, **PLAIN)
        found = played(world, rig, order)
        w, rule = START, Momentum(0.5)
        own = {rank: [START, np.zeros(SIZE, np.float32), 0] for rank in range(1, world.size)}
        for number, rank in enumerate(order):
            step, share = divmod(number, n_workers)
            params, kept, made = own[rank]
            params = w if made % pull == 0 else params
            g = gradient(share, step, params)
            params, kept = params - LR * g, kept + g
            if (made + 1) % push == 0:
                w, kept = rule(w, kept), np.zeros(SIZE, np.float32)
            own[rank] = [params, kept, made + 1]
        for last in left_over(order, push):
            w = rule(w, own[last][1])
        same(world, found, w, spec)
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
