"""Bytes that a step reads and writes, by tensor (:func:`of_step`): a model, from the way in which layers use memory.

=====================  =========================================================================================
memory                 of a step, times its size
=====================  =========================================================================================
``kept``               written forward; read as often as :mod:`psframe.nn.reads` has it, by its layer and the next
``scratch``            written and read, forward and backward
input gradients        each layer's written and read once
parameters             of a worker: read forward and backward; received, where each rank has its own; where updates
                       are applied: read and written
gradients              of a worker: written backward, read by the exchange; written by it, too, if they are private
optimizer state        read and written where updates are applied
``data``               the samples of a step, read by each worker
``exchange``, others   written and read
=====================  =========================================================================================

Caches are left out, but for the write allocation that :mod:`psframe.memory.tier_options` adds.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from psframe.memory.tensor_names import place_of, role_of, tensor_of
from psframe.nn import reads
from psframe.nn.network import Network
from psframe.nn.workspace import GRADIENTS, KEPT
from psframe.train.assembly.sizes import Accesses


def of_step(
    network: Network, n_samples: int, works: bool, applies: bool, sizes: Mapping[str, int], sample_bytes: int = 0
) -> Accesses:
    """Return what a rank reads and writes in a step.

    Parameters
    ----------
    network : Network
        Bound to its memory.
    n_samples : int
        Samples of a step; they pass the network at once, or in micro-batches.
    works, applies : bool
        True if the rank is a worker; if it applies updates to memory of its own.
    sizes : mapping of str to int
        Its bytes, by place.
    sample_bytes : int
        Bytes of a sample as the node's memory has it.
    """
    own: dict[str, tuple[int, int]] = {}
    arena = network.arena
    for place, size in sizes.items():
        role = role_of(place)
        if role == "activations":
            own[place] = _of_activation(network, n_samples, tensor_of(place), size) if works else (0, 0)
        elif role in ("parameters", "optimizer"):  # one copy is read, the other written, by who updates them
            share = size // len(arena.vectors.params) if applies or arena.shared else 0
            own[place] = share, share
        elif role == "data" or (role == "gradients" and (tensor_of(place) or not works)):
            own[place] = 0, 0  # added below, by those who compute them
        else:
            own[place] = size, size
    vectors = _of_vectors(network, n_samples, applies) if works else {}
    data = {"data": (n_samples * sample_bytes, 0)} if works else {}
    if arena.shared:
        return Accesses(own, vectors | data)
    for place, (read, written) in vectors.items():
        before = own.get(place, (0, 0))
        own[place] = before[0] + read, before[1] + written
    return Accesses(own, data)


def _passes(network: Network, n_samples: int) -> int:
    """Return the number of passes in which the samples of a step go through the network."""
    return max(1, -(-n_samples // max(1, network.max_batch)))


def _of_activation(network: Network, n_samples: int, tensor: str, size: int) -> tuple[int, int]:
    if tensor == GRADIENTS:
        active = network.active[network.own]
        n = sum(prod(network.shapes[index]) for index, _ in active) * n_samples * np.dtype(network.dtype).itemsize
        return n, n
    passes = _passes(network, n_samples)
    if tensor.endswith(KEPT):
        size = size * passes // network.n_kept
        return _reads_of_kept(network, n_samples, tensor, size), size
    return 2 * size * passes, 2 * size * passes


def _reads_of_kept(network: Network, n_samples: int, tensor: str, size: int) -> int:
    """Return the bytes read of what a layer keeps: its output, outputs within it, and others, read once each."""
    names = (f"{index}.{layer.kind}.{KEPT}" for index, layer in network.active)
    number = next((k for k, name in enumerate(names) if name == tensor), None)
    if number is None:  # what parts of a batch have written, for a layer that takes it as one, forward and backward
        return 2 * size
    layer, following = network.active[number][1], network.active[number + 1 :]
    own_reads = reads.of_output(layer, (other for _, other in following))
    outputs = [(prod(network.shape_before(number + 1)), own_reads), *reads.within(layer)]
    total, left = 0, size
    for numbers, times in outputs:
        own = min(left, numbers * n_samples * np.dtype(network.dtype).itemsize)
        total, left = total + times * own, left - own
    return total + left


def _of_vectors(network: Network, n_samples: int, applies: bool) -> dict[str, tuple[int, int]]:
    """Return a worker's passes over parameters and gradients, tensor by tensor."""
    itemsize, passes = np.dtype(network.dtype).itemsize, _passes(network, n_samples)
    receives = not network.arena.shared and not applies
    accesses: dict[str, tuple[int, int]] = {}
    for tensor, slot in network.layout.slots.items():
        n = slot.stop - slot.start
        accesses[place_of("parameters", tensor)] = 2 * n * itemsize * passes, n * itemsize if receives else 0
        # added to in each pass but the first; read by the exchange, which writes its sum into private ones
        read = 4 * n * passes
        accesses[place_of("gradients", tensor)] = read, 4 * n * passes + (0 if network.arena.shared else 4 * n)
    return accesses
