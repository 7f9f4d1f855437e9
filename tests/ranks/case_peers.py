"""Modes without a server against their equations: ranks take turns, and NumPy does the same in one process."""

from itertools import product

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.cluster.groups import divide
from psframe.cluster.joining import join
from psframe.optim import SGD
from tests.ranks.contract import CODECS
from tests.ranks.harness import ranks
from tests.ranks.lateness import count_from
from tests.ranks.play import (
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
    turn,
)
from tests.ranks.rig import Rig


@ranks(2, 3, 4)
def elastic_averaging(world):
    cluster, n_steps, period, beta = join(world), 8, 2, 0.8
    order = script(n_steps * world.size, range(world.size), 2)
    alpha = np.float32(beta / world.size)
    for store in STORES:
        spec = {"mode": "easgd", "period": period, "beta": beta, "store": store}
        rig = Rig(cluster, spec, optimizer=SGD(lr=0.1, momentum=0.9), n_steps=n_steps, **PLAIN)
        turns = rig.mode.turns(n_steps)
        for rank in order:
            turn(rig, turns, world.rank == rank)
            (rig.mode.progress or int)()
            world.Barrier()
        own = [START.copy() for _ in range(world.size)]
        rules, made, centre = [Momentum(0.9) for _ in own], [0] * world.size, START
        for number, rank in enumerate(order):
            step, share = divmod(number, world.size)
            own[rank] = rules[rank](own[rank], gradient(share, step, own[rank]))
            made[rank] += 1
            if made[rank] % period == 0:
                d = alpha * (own[rank] - centre)
                own[rank], centre = own[rank] - d, centre + d
        same(world, rig.arena.params, own[world.rank], spec)
        rig.mode._store.rest()
        out = np.empty(SIZE, np.float32)
        rig.mode._store.pull(out)
        same(world, out, centre, spec)
        rig.mode._store.rest()
        rig.close()


def averaged(world, spec, n_steps, outer):
    """Compare a synchronous mode of local steps with ``outer(w, starts, own)`` -> (w, starts)."""
    cluster, period = join(world), spec.get("every", spec.get("period"))
    for form in (("shared", {}), ("buffer", {}), ("hierarchical", {})):
        rig = Rig(cluster, spec, form, optimizer=SGD(lr=0.1, momentum=0.9), n_steps=n_steps, **PLAIN)
        rig.epoch(summed)
        w, own = START, [START] * world.size
        rules = [Momentum(0.9) for _ in own]
        for step in range(n_steps):
            own = [rule(x, gradient(k, step, x)) for k, (rule, x) in enumerate(zip(rules, own, strict=True))]
            if (step + 1) % period == 0 or step == n_steps - 1:
                w, own = outer(w, own)
        same(world, rig.arena.params, w, (spec, form))
        averages, lags = -(-n_steps // period), np.bincount(np.arange(n_steps) % period)
        assert (rig.tally.pulls, rig.tally.pushes) == (averages, averages), (spec, form)
        assert rig.tally.stale[: period + 1].tolist() == [*lags, 0], (spec, form)
        velocity = np.mean([rule.velocity for rule in rules], axis=0)
        same(world, rig.arena.state[0], velocity, (spec, form, "momentum"))
        rig.epoch(summed, first=n_steps)  # goes on from there
        assert len(set(world.allgather(rig.arena.params.tobytes()))) == 1
        rig.close()


@ranks(2, 3, 4)
def local_sgd(world):
    averaged(
        world,
        {"mode": "local_sgd", "every": 3},
        8,
        lambda w, own: (np.mean(own, axis=0), [np.mean(own, axis=0)] * len(own)),
    )


@ranks(2, 3, 4)
def synchronous_easgd(world):
    beta = 0.8

    def outer(w, own):
        alpha = np.float32(beta / len(own))
        return w + np.float32(beta) * (np.mean(own, axis=0) - w), [x - alpha * (x - w) for x in own]

    averaged(world, {"mode": "easgd", "synchronous": True, "period": 3, "beta": beta}, 8, outer)


@ranks(2, 3, 4)
def block_momentum(world):
    eta, zeta = np.float32(0.6), np.float32(0.9)
    for nesterov in (False, True):
        moved, start = [np.zeros(SIZE, np.float32)], [START]

        def outer(w, own, moved=moved, start=start, nesterov=nesterov):
            if w is START:  # a new comparison begins
                moved[0], start[0] = np.zeros(SIZE, np.float32), START
            moved[0] = eta * moved[0] + zeta * (np.mean(own, axis=0) - start[0])
            w = w + moved[0]
            start[0] = w + eta * moved[0] if nesterov else w
            return w, [start[0]] * len(own)

        spec = {"mode": "block_momentum", "every": 3, "momentum": 0.6, "block_lr": 0.9, "nesterov": nesterov}
        averaged(world, spec, 8, outer)


@ranks(2, 3, 4)
def states_are_averaged_whole_beside_averages_that_are_encoded(world):
    """By gradients that do not depend on the parameters, so that only a state which went through a codec is another."""
    cluster, n_steps = join(world), 5
    for codec, mode in product(CODECS, ("local_sgd", "block_momentum")):
        rig = Rig(
            cluster,
            {"mode": mode, "every": 2},
            ("buffer", {"compression": codec}),
            optimizer=SGD(lr=0.1, momentum=0.9),
            n_steps=n_steps,
            **PLAIN,
        )
        mean = np.zeros(SIZE, np.float32)
        for epoch in range(2):
            rig.epoch(lambda worker, step, params: summed(worker, step, START), first=epoch * n_steps)
            every = [Momentum(0.9, mean) for _ in range(world.size)]
            for step, (k, rule) in product(range(n_steps), enumerate(every)):
                rule(START, gradient(k, step, START))
            mean = np.mean([rule.velocity for rule in every], axis=0)
            same(world, rig.arena.state[0], mean, (codec, mode, epoch))
        rig.close()


@ranks(2, 3, 4)
def post_local_sgd_is_synchronous_at_first(world):
    """Also where a run goes on in the midst of an epoch: what is left of it is no whole one."""
    cluster, n_steps, first = join(world), 4, 2

    def steeper(worker, step, params):
        return (1 + worker) * summed(worker, step, params)  # alike, they would average to the same, however late

    for begun in (0, 2, n_steps, n_steps + 1):
        rigs = []
        for spec in ({"mode": "local_sgd", "every": 100, "post_local": first}, {"mode": "allreduce"}):
            rig = Rig(cluster, spec, n_steps=n_steps, **PLAIN)
            rig.sampler.epoch, rig.sampler.cursor = begun // n_steps, begun % n_steps * rig.sampler.samples_per_step
            rig.epoch(steeper, first=begun)
            rig.sampler.cursor = 0
            done = begun - begun % n_steps + n_steps
            for at in range(done, first * n_steps, n_steps):
                rig.epoch(steeper, first=at)
            rigs.append(rig)
        one, plain = rigs
        same(world, one.arena.params, plain.arena.params, f"average of every step from {begun} on")
        assert one.tally.pushes == one.tally.stale[0] == first * n_steps - begun
        for rig in rigs:
            rig.epoch(steeper, first=first * n_steps)
        assert one.tally.stale[:n_steps].tolist() == [first * n_steps - begun + 1] + [1] * (n_steps - 1)
        assert not np.allclose(one.arena.params, plain.arena.params, rtol=1e-3)
        for rig in rigs:
            rig.close()


@ranks(2, 3, 4)
def hogwild_in_turns_is_sgd(world):
    cluster, n_steps = join(world), 6
    order = script(n_steps * world.size, range(world.size), 3)
    rig = Rig(cluster, {"mode": "hogwild"}, optimizer=SGD(lr=0.1, momentum=0.5), n_steps=n_steps, **PLAIN)
    found = played(world, rig, order)
    w, velocities = START, [np.zeros(SIZE, np.float32)] * world.size
    for number, rank in enumerate(order):
        step, share = divmod(number, world.size)
        velocities[rank] = np.float32(0.5) * velocities[rank] + gradient(share, step, w)
        w = w - LR * velocities[rank]
    same(world, found, w, "hogwild")


@ranks(2, 4)
def hogwild_continued_has_the_state_on_every_rank(world):
    cluster = join(world)
    rig = Rig(cluster, {"mode": "hogwild"}, optimizer=SGD(lr=0.1, momentum=0.5), **PLAIN)
    rig.arena.state[:] = 7 if world.rank == 0 else 0  # as rank 0 has read it
    rig.mode.open(rig.update)
    assert (rig.arena.state == 7).all()


@ranks(4)
def lost_rank_of_a_group_is_named_by_its_number_in_the_job(world):
    cluster = join(world)
    group = divide(cluster, 2)
    for meeting in (cluster.rendezvous, group.cluster.rendezvous):
        # rank 2 waits for rank 3, and those of the other group for both, when they are there themselves
        count_from(meeting, 0.5, lambda meeting=meeting: {meeting.members[rank] for rank in meeting.late()} <= {2, 3})
    said = None
    if world.rank != 3:
        try:
            group.cluster.barrier()
            cluster.barrier()
        except PeerLost as lost:
            said = (lost.speaks, lost.ranks, str(lost))
    heard = [told for told in world.allgather(said) if told]
    assert len(heard) == 3
    spoken = [told for told in heard if told[0]]
    assert len(spoken) == 1
    assert 3 in spoken[0][1]  # and rank 2, to those of the other group, since it waits for it
    assert set(spoken[0][1]) <= {2, 3}


@ranks(2, 3, 4)
def dogwild(world):
    """Groups of one and of two; the master gets all that every group has learned."""
    cluster, n_steps, period = join(world), 6, 2
    order = script(n_steps * world.size, range(world.size), 4)
    for store in STORES:
        for group_size in (1, 2):
            spec = {"mode": "dogwild", "group_size": group_size, "period": period, "store": store}
            rig = Rig(cluster, spec, optimizer=SGD(lr=0.1), n_steps=n_steps, **PLAIN)
            found = played(world, rig, order)
            groups = world.allgather(rig.group.members)
            w = dict.fromkeys(groups, START)
            reference, made, master = dict(w), [0] * world.size, START
            for number, rank in enumerate(order):
                step, share = divmod(number, world.size)
                group = groups[rank]
                w[group] = w[group] - LR * gradient(share, step, w[group])
                made[rank] += 1
                if rank == group[0] and made[rank] % period == 0:
                    d = w[group] - reference[group]
                    master = master + d
                    w[group] = w[group] + (master - (reference[group] + d))
                    reference[group] = master
            for group in w:
                master = master + (w[group] - reference[group])
            same(world, found, master, spec)
            rig.close()


@ranks(2, 3, 4)
def hybrid(world):
    """Groups take their steps one after the other."""
    cluster, n_steps, period, beta = join(world), 6, 2, 0.8
    for store in STORES:
        for group_size in (1, 2):
            for form in (("shared", {}), ("buffer", {})):
                spec = {"mode": "hybrid", "group_size": group_size, "period": period, "beta": beta, "store": store}
                rig = Rig(cluster, spec, form, optimizer=SGD(lr=0.1, momentum=0.9), n_steps=n_steps, **PLAIN)
                turns = rig.mode.turns(n_steps)
                groups = sorted(set(world.allgather(rig.group.members)))
                order = np.random.default_rng(5).permutation(np.repeat(np.arange(len(groups)), n_steps)).tolist()
                for g in order:
                    turn(rig, turns, world.rank in groups[g])
                    world.Barrier()
                x = [START] * len(groups)
                rules, made, centre = [Momentum(0.9) for _ in groups], [0] * len(groups), START
                alpha = np.float32(beta / len(groups))
                for g in order:
                    mean = sum(gradient(k, made[g], x[g]) for k in groups[g]) / np.float32(len(groups[g]))
                    x[g] = rules[g](x[g], mean)
                    made[g] += 1
                    if made[g] % period == 0:
                        d = alpha * (x[g] - centre)
                        x[g], centre = x[g] - d, centre + d
                mine = [g for g, members in enumerate(groups) if world.rank in members]
                same(world, rig.arena.params, x[mine[0]], (spec, form))
                rig.mode._store.rest()
                rig.close()
