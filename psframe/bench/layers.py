"""Time of each layer within a step (:class:`Spent`), and its operations and bytes (:func:`work`)."""

from collections.abc import Callable
from math import prod
from time import perf_counter

from psframe.nn import operations
from psframe.nn.network import Network

DIRECTIONS = ("forward", "backward")


class Spent:
    """Accumulator of a layer's seconds, on the clock that times its passes."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(DIRECTIONS, 0.0)

    def __call__(self, direction: str, began: float) -> None:
        self.seconds[direction] += self.clock() - began

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, by direction."""
        seconds, self.seconds = self.seconds, dict.fromkeys(DIRECTIONS, 0.0)
        return seconds


def work(network: Network, number: int, batch: int) -> dict[str, dict[str, float]]:
    """Return, by direction, an active layer's multiplications and additions, and the least bytes that it moves.

    Forward reads input and weights, and writes the output. Backward reads input, weights and the output's gradient, and
    writes the gradients of weights and input; the first layer's input needs none.
    """
    index, layer = network.active[number]
    following = network.active[number + 1][0] if number + 1 < len(network.active) else len(network.layers)
    inputs, outputs = (batch * prod(network.shapes[i]) for i in (index, following))
    numbers = sum(prod(param.shape) for param in layer.params.values())
    of_network = 2 if network.dtype == "uint16" else 4  # bytes of a number; those of gradients of parameters are 4
    flops = batch * operations.of_forward(network, index)
    first = index == 0
    return {
        "forward": {"flops": flops, "bytes": of_network * (inputs + outputs + numbers)},
        "backward": {
            "flops": flops * (1 if first else 2),
            "bytes": of_network * (inputs + outputs + numbers + (0 if first else inputs)) + 4 * numbers,
        },
    }
