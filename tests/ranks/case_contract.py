"""The contract suite: every sync mode over every collective, against a left fold written out in NumPy."""

import numpy as np

from psframe import collectives, registry, sync
from psframe.arena import Arena, Layout
from psframe.cluster import Team
from psframe.memory.allocator import Allocator
from psframe.nn.base import Param
from psframe.optim import SGD, Updater
from tests.ranks.harness import ranks

MODES = (("sync_ps", {"server": "dedicated"}), ("sync_ps", {"server": "colocated"}), ("allreduce", {}))
EXCHANGING = [name for name in collectives.TABLE if name != "null"]
LAYOUTS = ([(3, 5), (7,)], [(1,)], [(40, 300), (11,), (2, 3, 5, 5)])
STEPS = 4


def gradients(worker, step, size):
    """A worker's summed gradient and its number of samples; the last worker's third batch is empty."""
    numbers = np.random.default_rng((worker, step)).standard_normal(size).astype(np.float32)
    n = 0 if step == 2 and worker else 5 + worker
    return numbers * n, n


def expected(n_workers, size, n_steps):
    """Parameters after SGD with momentum on the canonical means, in float32, operation by operation."""
    params, velocity = start(size), np.zeros(size, np.float32)
    for step in range(n_steps):
        every = [gradients(worker, step, size) for worker in range(n_workers)]
        total = every[0][0].copy()
        for numbers, _ in every[1:]:
            total = total + numbers
        mean = total / np.float32(sum(n for _, n in every))
        velocity = np.float32(0.9) * velocity + (mean + np.float32(0.01) * params)
        params = params - np.float32(0.1) * velocity
    return params


def start(size):
    return np.linspace(-1, 1, size, dtype=np.float32)


def train(world, mode, arguments, name, reproducible, shapes):
    """Take STEPS steps and return (arena, collective, team)."""
    bound_mode = registry.bind("sync", sync.TABLE, {"mode": mode, **arguments}, "mode")()
    team = Team(world, bound_mode.server)
    allocator = Allocator()
    layout = Layout({str(i): Param(shape, tuple(range(len(shape)))) for i, shape in enumerate(shapes)})
    arena = Arena(layout, 1 if team.applies else 0, allocator)
    arena.params[:] = start(layout.size) if world.rank == 0 else np.nan  # open() must bring them
    if mode == "allreduce":
        arena.params[:] = start(layout.size)
    make = registry.bind("collective", collectives.TABLE, {"name": name})
    collective = make(team, layout.size, allocator, reproducible)
    update = Updater(SGD(lr=0.1, momentum=0.9, weight_decay=0.01), arena.params, arena.state)
    bound_mode.open(arena, collective, update)
    promised = allocator.bytes_by_role["exchange"]
    for step in range(STEPS):
        every = [gradients(worker, step, layout.size) for worker in range(team.n_workers)]
        arena.grads[:] = np.nan if team.worker is None else every[team.worker][0]
        bound_mode.step(sum(n for _, n in every), 0.1, step + 1)
    assert allocator.bytes_by_role["exchange"] == promised, "a step allocated exchange buffers"
    return arena, collective, team


@ranks(2, 3, 4, 7, 16, 64)
def canonical_bits_in_every_mode_over_every_collective(world):
    for shapes in LAYOUTS:
        for mode, arguments in MODES:
            for name in EXCHANGING:
                arena, collective, team = train(world, mode, arguments, name, "fixed_workers", shapes)
                wanted = expected(team.n_workers, arena.layout.size, STEPS)
                where = f"{mode} {arguments} over {name}, {shapes}"
                np.testing.assert_array_equal(arena.params, wanted, err_msg=where)
                assert collective.bytes_moved >= 0


@ranks(2, 3, 4, 7, 16)
def every_gradient_counts_once_where_mpi_chooses_the_order(world):
    for mode, arguments in MODES:
        for name in EXCHANGING:
            arena, _, team = train(world, mode, arguments, name, "none", LAYOUTS[2])
            wanted = expected(team.n_workers, arena.layout.size, STEPS)
            np.testing.assert_allclose(arena.params, wanted, rtol=1e-4, atol=1e-5)
            same = world.allgather(arena.params.tobytes())
            assert len(set(same)) == 1, "workers ended in different parameters"


@ranks(2, 3)
def null_moves_nothing(world):
    for mode, arguments in MODES:
        arena, collective, team = train(world, mode, arguments, "null", "none", LAYOUTS[0])
        assert collective.bytes_moved == 0
        if not team.applies:
            assert np.isnan(arena.params).all()


@ranks(2, 4)
def bytes_are_counted(world):
    size, n = 16 + 16, world.size  # two tensors, each padded to a cache line
    for name, slack in (("buffer", 0), ("object", 400 * n * n)):
        for mode, arguments in MODES:
            _, collective, _ = train(world, mode, arguments, name, "fixed_workers", [(3, 5), (7,)])
            moved = world.allreduce(collective.bytes_moved)
            opening = (n - 1) * size * 4
            a_step = 2 * (n - 1) * size * 4  # gather + broadcast, or reduce-scatter + allgather
            assert opening + STEPS * a_step <= moved <= opening + STEPS * (a_step + slack) + slack
