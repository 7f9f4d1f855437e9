"""Parts of a batch that pass a network's front layers one after the other (:func:`front`, :func:`part_of`)."""

from collections.abc import Sequence
from itertools import takewhile
from math import prod

from psframe.nn.base import Layer
from psframe.nn.workspace import Shape

PART_BYTES = 1 << 20  # of the front layers' outputs for a part of a batch, or more if their weights are


def front(active: Sequence[tuple[int, Layer]]) -> Sequence[tuple[int, Layer]]:
    """Return the layers, from the first on, that process a batch in parts."""
    return [*takewhile(lambda numbered: not numbered[1].whole, active)]


def part_of(
    active: Sequence[tuple[int, Layer]], shapes: Sequence[Shape], max_batch: int, kernels: str, n_threads: int
) -> int:
    """Return the number of samples that pass the front layers together, the same for all stages of a network.

    Their outputs stay in a cache, or are as many as the weights, which every part reads anew. ``active`` and ``shapes``
    are those of the complete network.
    """
    layers = front(active)
    # waking threads for every layer of every part would take longer than a cache saves
    if kernels == "blas" or n_threads > 1 or not layers or any(layer.together for _, layer in active):
        return max_batch
    n_outputs = sum(prod(shapes[index + 1]) for index, _ in layers)
    n_weights = sum(prod(param.shape) for _, layer in layers for param in layer.params.values())
    part = max(2, max(PART_BYTES // 4, n_weights) // n_outputs)
    return min(max_batch, part - part % 2)  # even, since bfloat16 pairs samples
