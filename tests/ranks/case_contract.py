"""The contract suite: every sync mode over every collective, against a left fold written out in NumPy."""

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.memory.arena import Keeping
from psframe.optim import SGD, Updater
from tests.helpers.bfloat16_model import rounded
from tests.helpers.suite import combined
from tests.ranks.contract import CODECS, LAYOUTS, MODES, STEPS, expected, start, train
from tests.ranks.every_collective import FORMS
from tests.ranks.harness import ranks
from tests.ranks.lateness import count_from


@ranks(2, 3, 4, 7, 16, 64)
def canonical_bits_in_every_mode_over_every_collective(world):
    cluster = join(world)
    for shapes, (mode, arguments), form in combined(LAYOUTS, MODES, FORMS):
        arena, _, team, update = train(cluster, mode, arguments, form, "fixed_workers", shapes)
        wanted = expected(team.n_workers, arena.layout, STEPS)
        where = f"{mode} {arguments} over {form}, {shapes}"
        np.testing.assert_array_equal(arena.params, wanted, err_msg=where)
        assert update.first_nonfinite_step == 0


@ranks(2, 3, 4, 7)
def layers_read_the_parameters_in_bfloat16(world):
    cluster = join(world)
    for (mode, arguments), form, own_optimizer in combined(MODES, FORMS, (False, True)):
        how = {"own_optimizer": own_optimizer, "keeping": Keeping(bfloat16=True)}
        arena, _, team, _ = train(cluster, mode, arguments, form, "fixed_workers", LAYOUTS[2], **how)
        wanted = rounded(expected(team.n_workers, arena.layout, STEPS))
        np.testing.assert_array_equal(arena.params_bf16, wanted, err_msg=f"{mode} {arguments} over {form}")


@ranks(2, 3, 4, 7)
def own_optimizer_gives_the_same_bits(world):
    cluster = join(world)
    for mode, arguments in MODES:
        for form in FORMS:
            arena, _, team, _ = train(cluster, mode, arguments, form, "fixed_workers", LAYOUTS[2], own_optimizer=True)
            wanted = expected(team.n_workers, arena.layout, STEPS)
            np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{mode} {arguments} over {form}")


@ranks(2, 3, 4, 7, 16)
def gradients_count_once_where_mpi_chooses_the_order(world):
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
        if not team.applies_updates:
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
def step_that_a_rank_does_not_finish_never_was(world):
    """The last rank is lost between its sum and the end of the step: the others name it, and keep what they had."""
    cluster = join(world)
    form = ("shared", {"reducers": "all"})
    arena, collective, _, update = train(cluster, "allreduce", {}, form, "none", [(1 << 14,)])
    version, before = arena.version, arena.params.copy()
    arena.grads[:] = 1
    lost, spoke, left = world.size - 1, False, cluster.link.share(64)
    count_from(cluster.rendezvous, 0.3, lambda: left[0] and cluster.rendezvous.late() == [lost])
    try:
        for segment, mean in collective.allreduce_mean(arena.grads, world.size):
            update(segment, mean, 0.1, 1)
            if world.rank == lost:
                left[0] = 1
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
def own_mode_exchanges_what_it_gives(world):
    """Not the arena's gradients, but something else."""
    cluster = join(world)
    for form in FORMS:
        arena, collective, *_ = train(cluster, "allreduce", {}, form, "none", LAYOUTS[2])
        before, kept = arena.params.copy(), np.full(arena.layout.size, 3, np.float32)
        update = Updater(SGD(lr=0.5), arena)
        for segment, mean in collective.allreduce_mean(kept, world.size):
            update(segment, mean, 0.5, 1)
        np.testing.assert_array_equal(arena.params, before - np.float32(1.5), err_msg=str(form))
        cluster.barrier()
