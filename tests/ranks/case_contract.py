"""The contract suite: every sync mode over every collective, against a left fold written out in NumPy."""

import numpy as np

from psframe.cluster import join
from psframe.memory.gates import PeerLost
from psframe.optim import SGD
from tests.ranks.harness import ranks
from tests.ranks.rig import Rig

MODES = (("sync_ps", {"server": "dedicated"}), ("sync_ps", {"server": "colocated"}), ("allreduce", {}))
#: every collective that exchanges, in all its forms
FORMS = (
    ("shared", {}),
    ("shared", {"reducers": "all"}),
    ("shared", {"reducers": "server"}),
    ("shared", {"reducers": "all", "chunk_bytes": 8192}),
    ("hierarchical", {}),
    ("buffer", {}),
    ("buffer", {"bucket_bytes": 0, "gather": "gather"}),
    ("buffer", {"bucket_bytes": 64}),
    ("object", {}),
)
CODECS = ("fp16", "bf16", "onebit", {"name": "topk", "density": 0.3})
LAYOUTS = ([(3, 5), (7,)], [(1,)], [(40, 300), (11,), (2, 3, 5, 5)])
STEPS = 4


def gradients(worker, step, layout):
    """A worker's summed gradient and its number of samples; the last worker's third batch is empty."""
    numbers = np.random.default_rng((worker, step)).standard_normal(layout.size).astype(np.float32)
    for gap in layout.gaps():
        numbers[gap] = 0
    n = 0 if step == 2 and worker else 5 + worker
    return numbers * n, n


def left_fold(rows):
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    return total


def expected(n_workers, layout, n_steps, add=left_fold):
    """Parameters after SGD with momentum on the canonical means, in float32, operation by operation."""
    params, velocity = start(layout.size), np.zeros(layout.size, np.float32)
    for step in range(n_steps):
        every = [gradients(worker, step, layout) for worker in range(n_workers)]
        mean = add([numbers for numbers, _ in every]) / np.float32(sum(n for _, n in every))
        velocity = np.float32(0.9) * velocity + (mean + np.float32(0.01) * params)
        params = params - np.float32(0.1) * velocity
    return params


def start(size):
    return np.linspace(-1, 1, size, dtype=np.float32)


def train(cluster, mode, arguments, form, reproducible, shapes, own_optimizer=False):
    """Take STEPS steps and return (arena, collective, team, updater).

    As backward does not, nothing writes between tensors; what a codec makes of zeros there would be summed again.
    """
    optimizer = SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    rig = Rig(
        cluster,
        {"mode": mode, **arguments},
        form,
        shapes,
        reproducible=reproducible,
        optimizer=Plainly(optimizer) if own_optimizer else optimizer,
    )
    team, arena, collective, layout = rig.team, rig.arena, rig.collective, rig.layout
    boundaries = collective.boundaries([slot.start for slot in layout.slots.values()])
    for step in range(STEPS):
        every = [gradients(worker, step, layout) for worker in range(team.n_workers)]
        for slot in layout.slots.values():
            slot.view(arena.grads)[:] = np.nan if team.worker is None else slot.view(every[team.worker][0])
        if boundaries and team.worker is not None:
            leave_bit_by_bit(collective, layout)
        rig.mode.step(sum(n for _, n in every), 0.1, step + 1)
        for gap in layout.gaps() if team.worker is not None else ():
            assert not arena.grads[gap].any(), (mode, form, step)
    assert dict(rig.allocator.bytes_by_role) == rig.promised, "a step allocated memory"
    cluster.barrier()
    return arena, collective, team, rig.update


def leave_bit_by_bit(collective, layout):
    """As backward does: from the last tensor to the first."""
    end = layout.size
    for slot in reversed(layout.slots.values()):
        collective.leave(slice(slot.start, end))
        end = slot.start


class Plainly:
    """A user's own optimizer, which knows of no compiled rule."""

    def __init__(self, optimizer):
        self.lr, self.n_state, self.update = optimizer.lr, optimizer.n_state, optimizer.update


@ranks(2, 3, 4, 7, 16, 64)
def canonical_bits_in_every_mode_over_every_collective(world):
    cluster = join(world)
    for shapes in LAYOUTS:
        for mode, arguments in MODES:
            for form in FORMS:
                arena, _, team, update = train(cluster, mode, arguments, form, "fixed_workers", shapes)
                wanted = expected(team.n_workers, arena.layout, STEPS)
                where = f"{mode} {arguments} over {form}, {shapes}"
                np.testing.assert_array_equal(arena.params, wanted, err_msg=where)
                assert update.wild_step == 0


@ranks(2, 3, 4, 7)
def a_users_own_optimizer_gives_the_same_bits(world):
    cluster = join(world)
    for mode, arguments in MODES:
        for form in FORMS:
            arena, _, team, _ = train(cluster, mode, arguments, form, "fixed_workers", LAYOUTS[2], own_optimizer=True)
            wanted = expected(team.n_workers, arena.layout, STEPS)
            np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{mode} {arguments} over {form}")


@ranks(2, 3, 4, 7, 16)
def every_gradient_counts_once_where_mpi_chooses_the_order(world):
    cluster = join(world)
    for mode, arguments in MODES:
        for form in FORMS:
            arena, _, team, _ = train(cluster, mode, arguments, form, "none", LAYOUTS[2])
            wanted = expected(team.n_workers, arena.layout, STEPS)
            np.testing.assert_allclose(arena.params, wanted, rtol=1e-4, atol=1e-5)
            same = world.allgather(arena.params.tobytes())
            assert len(set(same)) == 1, "workers ended in different parameters"


@ranks(2, 3, 4, 7)
def codecs_lose_little_and_all_workers_lose_the_same(world):
    cluster = join(world)
    for mode, arguments in MODES:
        for codec in CODECS:
            ends = set()
            for name in ("buffer", "object"):
                form = (name, {"compression": codec})
                arena, _, team, _ = train(cluster, mode, arguments, form, "fixed_workers", LAYOUTS[2])
                between = sum(gap.stop - gap.start for gap in arena.layout.gaps())
                assert between == arena.layout.size - arena.layout.n_params > 0
                wanted = expected(team.n_workers, arena.layout, STEPS)
                ends |= set(world.allgather(arena.params.tobytes()))
                if codec in ("fp16", "bf16"):
                    np.testing.assert_allclose(arena.params, wanted, rtol=0.05, atol=0.05)
                assert np.isfinite(arena.params).all()
                assert not np.array_equal(arena.params, start(arena.layout.size))
            assert len(ends) == 1, f"{mode} {codec}: buffer and object, or two workers, differ"


@ranks(2, 4)
def null_moves_nothing(world):
    cluster = join(world)
    for mode, arguments in MODES:
        arena, collective, team, _ = train(cluster, mode, arguments, ("null", {}), "none", LAYOUTS[0])
        assert collective.traffic == type(collective.traffic)()
        if not team.applies:
            assert np.isnan(arena.params).all()


@ranks(2, 4)
def bytes_are_counted(world):
    cluster = join(world)
    size, n = 16 + 16, world.size  # two tensors, each padded to a cache line
    for name, slack in (("buffer", 0), ("object", 400 * n * n)):
        for mode, arguments in MODES:
            _, collective, _, _ = train(cluster, mode, arguments, (name, {}), "fixed_workers", [(3, 5), (7,)])
            sent = world.allreduce(collective.traffic.sent)
            a_step = 2 * (n - 1) * size * 4  # gather + broadcast, or reduce-scatter + allgather
            assert STEPS * a_step <= sent <= STEPS * (a_step + slack), (name, mode, sent)


@ranks(2, 3, 4, 7)
def shared_memory_moves_what_it_must_and_sends_nothing(world):
    cluster = join(world)
    for mode, arguments in MODES:
        for keys in ({}, {"reducers": "all"}, {"reducers": "server"}):
            arena, collective, team, update = train(cluster, mode, arguments, ("shared", keys), "none", [(1 << 16,)])
            traffic = [collective.traffic, update.traffic]
            moved = world.allreduce(sum(t.read + t.written for t in traffic))
            assert moved == STEPS * (team.n_workers + 4) * arena.params.nbytes  # of momentum: W + 4 vectors
            assert sum(t.sent for t in traffic) == 0


@ranks(2, 4)
def codecs_send_fewer_bytes(world):
    cluster = join(world)
    n_bytes = 4 * (1 << 16)
    for codec, least in (("fp16", 2), ("bf16", 2), ("onebit", 28), ({"name": "topk", "density": 0.01}, 45)):
        form = ("buffer", {"compression": codec})
        _, collective, _, _ = train(cluster, "allreduce", {}, form, "none", [(1 << 16,)])
        sent = world.allreduce(collective.traffic.sent)
        assert 0 < sent <= 1.02 * STEPS * 2 * (world.size - 1) * n_bytes / least, (codec, sent)


@ranks(3, 4)
def a_step_that_a_rank_does_not_finish_never_was(world):
    """The last rank is lost between its sum and the end of the step: the others name it, and keep what they had."""
    cluster = join(world)
    form = ("shared", {"reducers": "all"})
    arena, collective, _, update = train(cluster, "allreduce", {}, form, "none", [(1 << 14,)])
    cluster.rendezvous.deadline_s = 0.3
    version, before = arena.version, arena.params.copy()
    arena.grads[:] = 1
    lost, spoke = world.size - 1, False
    try:
        for segment, mean in collective.allreduce_mean(arena.grads, world.size):
            update(segment, mean, 0.1, 1)
            if world.rank == lost:
                break
    except PeerLost as error:
        assert world.rank != lost
        spoke = error.speaks
        if spoke:
            assert error.ranks == (lost,)
            assert f"rank {lost} did not come" in str(error)
    else:
        assert world.rank == lost
    assert world.allreduce(spoke) == 1
    assert arena.version == version
    np.testing.assert_array_equal(arena.params, before)
    assert not np.array_equal(arena.new_params, before), "nobody had begun to write"


@ranks(2, 4)
def what_a_sync_mode_of_its_own_exchanges_is_exchanged(world):
    """Not the arena's gradients, but something else."""
    cluster = join(world)
    for form in FORMS:
        arena, collective, _, update = train(cluster, "allreduce", {}, form, "none", LAYOUTS[2])
        before, kept = arena.params.copy(), np.full(arena.layout.size, 3, np.float32)
        update.optimizer = SGD(lr=0.5)
        for segment, mean in collective.allreduce_mean(kept, world.size):
            update(segment, mean, 0.5, 1)
        np.testing.assert_array_equal(arena.params, before - np.float32(1.5), err_msg=str(form))
        cluster.barrier()
