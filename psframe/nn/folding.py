"""Networks for inference without the batch normalizations that a layer before them can do (:func:`folded`)."""

import copy
from collections.abc import Sequence

import numpy as np

from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Layer
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import BatchNorm
from psframe.nn.residual import Residual

LINEAR = (Conv2d, Conv1d, Dense)  # each output channel has weights of its own, and a bias


def folded(layers: Sequence[Layer], tensors: Arrays) -> tuple[list[Layer], Arrays]:
    """Return layers that infer the same, to set up anew, and their tensors; with a layer of a user's own, all as given.

    In evaluation, a BatchNorm multiplies each channel and adds to it. Behind a convolution or a dense layer it becomes
    a part of its weights and bias (Jacob et al. 2018, eq. 14). A ReLU that follows is then that layer's.

    Parameters
    ----------
    layers : sequence of Layer
        Of a network; they stay as they are.
    tensors : dict of str to ndarray
        By the names that the network gives them, in logical order.
    """
    if not all(map(_known, layers)):
        return list(layers), tensors
    made, arrays = _chain(layers, tensors, 0)
    return made, _named(made, arrays, 0)


def _known(layer: Layer) -> bool:
    """Return True if a copy of the layer, and of those within, may be set up anew."""
    within = (*layer.body.layers, *layer.shortcut.layers) if type(layer) is Residual else ()
    return type(layer).__module__.startswith("psframe.") and all(map(_known, within))


def _chain(layers: Sequence[Layer], tensors: Arrays, begin: int) -> tuple[list[Layer], list[Arrays]]:
    """Return layers and the tensors of each; the first one's number in ``tensors`` is ``begin``."""
    made: list[Layer] = []
    arrays: list[Arrays] = []
    for number, layer in enumerate(layers, begin):
        prefix = f"{number}.{layer.kind}."
        own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        if type(layer) is BatchNorm and made and type(made[-1]) in LINEAR:
            if isinstance(made[-1], Conv2d):
                made[-1].has_bias = True
            arrays[-1] = _merged(layer.eps, own, arrays[-1])
        elif type(layer) is Residual:
            body, of_body = _chain(layer.body.layers, own, 0)
            around, of_around = _chain(layer.shortcut.layers, own, len(layer.body.layers))
            made.append(Residual(body, around))
            arrays.append(_named(body, of_body, 0) | _named(around, of_around, len(body)))
        else:
            made.append(_fresh(layer))
            arrays.append(own)
    return made, arrays


def _fresh(layer: Layer) -> Layer:
    """Return a copy to set up in another network."""
    own = copy.copy(layer)
    if isinstance(own, BeforeReLU):
        own.relu = False
    return own


def _merged(eps: float, norm: Arrays, linear: Arrays) -> Arrays:
    """Return weight and bias of a layer with those, and the statistics, of the normalization behind it."""
    variance = np.maximum(norm["running_var"].astype(float), 0)  # as loops.of_running reads it
    scale = norm["weight"] / np.sqrt(variance + eps)
    shift = norm["bias"] + scale * (linear.get("bias", 0) - norm["running_mean"].astype(float))
    weight = linear["weight"] * scale.reshape(-1, *[1] * (linear["weight"].ndim - 1))
    return {"weight": weight.astype(np.float32), "bias": shift.astype(np.float32)}


def _named(layers: Sequence[Layer], arrays: Sequence[Arrays], begin: int) -> Arrays:
    return {
        f"{number}.{layer.kind}.{name}": array
        for number, (layer, own) in enumerate(zip(layers, arrays, strict=True), begin)
        for name, array in own.items()
    }
