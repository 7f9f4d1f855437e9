"""Multiplications and additions of a network (:func:`of_step`, :func:`of_forward`)."""

from math import prod
from typing import TYPE_CHECKING

from psframe.nn.base import Layer, Shape

if TYPE_CHECKING:
    from psframe.nn.network import Network


def of_step(network: "Network") -> float:
    """Return those of a training step for one sample: three products per weight and place."""
    return 3 * sum(of_forward(network, index) for index in range(len(network.layers)))


def of_forward(network: "Network", index: int) -> float:
    """Return those of a layer's forward pass for one sample; 0 without weights."""
    return of_layer(network.layers[index], network.shapes[index + 1])


def of_layer(layer: Layer, output_shape: Shape) -> float:
    """Return those of the forward pass for one sample of a layer with this output; 0 without weights."""
    weight = layer.params.get("weight")
    if layer.flops is not None:
        return layer.flops
    return 2.0 * prod(weight.shape) * prod(output_shape[:-1]) if weight else 0.0
