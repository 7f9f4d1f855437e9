"""Bytes that a step reads and writes, by tensor (:func:`of_step`): a model, from the way in which layers use memory.

=====================  =========================================================================================
memory                 of a step, times its size
=====================  =========================================================================================
``kept``               written forward, read by the next layer; read twice backward: as an input and as an output
``scratch``            written and read, forward and backward
input gradients        each layer's written and read once
parameters             of a worker: read forward and backward; received, where each rank has its own; where updates
                       are applied: read and written
gradients              of a worker: written backward, read by the exchange; written by it, too, if they are private
optimizer state        read and written where updates are applied
``exchange``, others   written and read
=====================  =========================================================================================

Caches are left out, but for the write allocation that :mod:`psframe.memory.tier_plan` adds.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from psframe.memory.tensor_names import place_of, role_of, tensor_of
from psframe.nn.workspace import GRADIENTS, KEPT
from psframe.train.run import Run


def of_step(run: Run, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return bytes read and written by this rank in a step, by place; ``sizes`` are its bytes by place."""
    moves: dict[str, tuple[int, int]] = {}
    works, applies = run.team.worker is not None, run.team.applies_updates
    copies = len(run.network.arena.vectors.params)
    for place, size in sizes.items():
        role = role_of(place)
        if role == "activations":
            moves[place] = _of_activation(run, tensor_of(place), size) if works else (0, 0)
        elif role in ("parameters", "optimizer"):
            share = size // copies if applies else 0
            moves[place] = share, share
        elif role == "gradients":
            moves[place] = 0, 0  # added below, by those who compute them
        else:
            moves[place] = size, size
    if works:
        _add_vectors(run, moves)
    return moves


def _of_activation(run: Run, tensor: str, size: int) -> tuple[int, int]:
    if tensor == GRADIENTS:
        itemsize = np.dtype(run.network.dtype).itemsize
        active = run.network.active[run.network.own]
        n = sum(prod(run.network.shapes[index]) for index, _ in active) * run.sampler.max_batch * itemsize
        return n, n
    if tensor.endswith(KEPT):
        return 3 * size, size
    return 2 * size, 2 * size


def _add_vectors(run: Run, moves: dict[str, tuple[int, int]]) -> None:
    """Add a worker's passes over parameters and gradients, tensor by tensor."""
    arena, itemsize = run.network.arena, np.dtype(run.network.dtype).itemsize
    receives = not arena.shared and not run.team.applies_updates
    for tensor, slot in run.network.layout.slots.items():
        n = slot.stop - slot.start
        read, written = moves.get(place_of("parameters", tensor), (0, 0))
        moves[place_of("parameters", tensor)] = read + 2 * n * itemsize, written + (n * itemsize if receives else 0)
        moves[place_of("gradients", tensor)] = 4 * n, 4 * n if arena.shared else 8 * n
