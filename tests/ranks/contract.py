"""Tables of sync modes and collectives; steps of each, and the parameters NumPy ends in after the same steps."""

import numpy as np

from psframe.memory.arena import ONE_COPY
from psframe.optim import SGD
from tests.ranks.rig import Rig

MODES = (("sync_ps", {"server": "dedicated"}), ("sync_ps", {"server": "colocated"}), ("allreduce", {}))
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


def train(cluster, mode, arguments, form, reproducible, shapes, own_optimizer=False, keeping=ONE_COPY):
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
        keeping=keeping,
    )
    team, arena, collective, layout = rig.team, rig.arena, rig.collective, rig.layout
    begins, overlap = [slot.start for slot in layout.slots.values()], collective.overlap
    boundaries = overlap.hook_layers(begins)
    for step in range(STEPS):
        every = [gradients(worker, step, layout) for worker in range(team.n_workers)]
        for slot in layout.slots.values():
            slot.view(arena.grads)[:] = np.nan if team.worker is None else slot.view(every[team.worker][0])
        if boundaries and team.worker is not None:
            leave_bit_by_bit(collective, layout)
        rig.mode.step(sum(n for _, n in every), 0.1, step + 1)
        for gap in layout.gaps() if team.worker is not None else ():
            assert not arena.grads[gap].any(), (mode, form, step)
    assert dict(rig.allocator.bytes_by_place) == rig.promised, "a step allocated memory"
    cluster.barrier()
    return arena, collective, team, rig.update


def leave_bit_by_bit(collective, layout):
    """As backward does: from the last tensor to the first."""
    end = layout.size
    for slot in reversed(layout.slots.values()):
        collective.overlap.grads_ready(slice(slot.start, end))
        end = slot.start


class Plainly:
    """A user's own optimizer, which knows of no compiled rule."""

    def __init__(self, optimizer):
        self.lr, self.n_state, self.update = optimizer.lr, optimizer.n_state, optimizer.update
