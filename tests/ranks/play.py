"""Ranks take turns in a sync mode, as a script says, on a problem that NumPy solves in the same turns."""

import numpy as np

SIZE, BATCH, LR = 48, 2, np.float32(0.1)
START = np.linspace(-1, 1, SIZE, dtype=np.float32)
PLAIN = {"start": START, "batch_size": BATCH}
STORES = ("shared", "window")


def gradient(worker, step, params):
    """Mean gradient of a quadratic whose minimum differs by worker and step; float32."""
    target = np.sin(np.arange(SIZE) * (1 + worker) + step).astype(np.float32)
    return np.float32(0.5) * (params - target)


def summed(worker, step, params):
    return BATCH * gradient(worker, step, params)


def script(n_turns, members, seed=0):
    """In which order the members take turns: at random, but the same on every rank."""
    return np.random.default_rng(seed).choice(members, n_turns).tolist()


def turn(rig, turns, mine):
    """Let this rank take its next turn, if it is its; all wait for it. Return whether there was one."""
    found = next(turns, None) if mine else None
    if found is not None:
        step, worker = found
        rig.arena.grads[:] = summed(worker, step, rig.arena.params)
        rig.mode.step(rig.sampler.samples_in(step), float(LR), step + 1)
    return found is not None


def played(world, rig, order):
    """Play an epoch: the ranks in ``order``, then each until it finds nothing left; a server serves what is posted."""
    turns = rig.mode.turns(rig.sampler.n_steps)
    serves = rig.team.server == "dedicated" and world.rank == 0
    if serves:
        next(turns)  # which makes it ready
    heard = world.allgather(rig.tally.pushes)
    for rank in order:
        found = turn(rig, turns, world.rank == rank)
        pushed = world.bcast(found and rig.tally.pushes, rank)
        if serves and pushed != heard[rank]:
            heard[rank] = pushed
            rig.mode.serve()
        world.Barrier()
    # nobody finds anything: only now may all end
    assert not turn(rig, turns, not serves)
    while serves and rig.mode.at_work:
        rig.mode.serve()
    rig.mode.drain()
    return rig.arena.params.copy()


def same(world, params, wanted, where):
    np.testing.assert_allclose(params, wanted, rtol=1e-6, atol=1e-6, err_msg=f"{where}, rank {world.rank}")


class Momentum:
    """SGD with momentum, in NumPy."""

    def __init__(self, momentum=0.0, velocity=0.0):
        self.momentum, self.velocity = np.float32(momentum), np.zeros(SIZE, np.float32) + np.float32(velocity)

    def __call__(self, params, gradient, lr=LR):
        self.velocity = self.momentum * self.velocity + gradient
        return params - lr * self.velocity
