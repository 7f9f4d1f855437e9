"""Passes of layers over activations (:class:`Reads`), from which a step's memory traffic is counted."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple


class Reads(NamedTuple):
    """How often a layer reads its input and its output in a training step.

    Attributes
    ----------
    forward : int
        Its input, in the forward pass.
    backward : int
        Its input, in the backward pass.
    output : int
        Its output, in the backward pass.
    """

    forward: int = 1
    backward: int = 1
    output: int = 1


ONCE = Reads(1, 0, 0)  # of what forgets it: the loss, or a sum


def of(layers: Iterable[Any]) -> Reads:
    """Return the passes of the first layer that reads its input: others return views of it."""
    return next((getattr(layer, "reads", Reads()) for layer in layers if not is_view(layer)), ONCE)


def is_view(layer: Any) -> bool:
    """Return True if a layer returns its input, or a view of it."""
    return getattr(layer, "is_view", False)


def of_output(layer: Any, following: Iterable[Any]) -> int:
    """Return how often the output of a layer is read in a step, by itself and by the one that reads it next."""
    reader = of(following)
    return of([layer]).output + reader.forward + reader.backward


def within(layer: Any) -> Iterator[tuple[int, int]]:
    """Yield the numbers of a sample in each output within a layer that has layers, and how often they are read."""
    for chain in getattr(layer, "chains", ()):
        positions, layers = zip(*chain.active, strict=True) if chain.active else ((), ())
        for k, inner in enumerate(chain.running):
            after = positions[k + 1] if k + 1 < len(positions) else len(chain.layers)
            if not is_view(inner):
                yield prod(chain.shapes[after]), of_output(inner, layers[k + 1 :])
                yield from within(inner)
