"""Checks of layers' hyper-parameters (:func:`whole`, :func:`pair`) and input shapes (:func:`image`)."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from psframe.errors import UserError, nearest
from psframe.nn.base import Shape


def whole(name: str, value: object, low: int) -> int:
    """Return ``value``; raises UserError if it is not an integer of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value!r}; mend the model")
    return value


def pair(name: str, value: int | tuple[int, int], low: int, axes: int = 2) -> tuple[int, int]:
    """Return ``value`` as (height, width); raises UserError if either is not an integer of at least ``low``.

    With ``axes`` = 1, for sequences, ``value`` is the width, and the height is neutral: a kernel or a stride of 1 and a
    padding of 0, which is ``low``.
    """
    if axes == 1:
        return low, whole(name, value, low)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return whole(name, value[0], low), whole(name, value[1], low)
    width = whole(f"{name} (or each of a pair)", value, low)
    return width, width


def image(layer: object, index: int, shape: Shape, axes: int = 2) -> tuple[int, int, int]:
    """Return ``shape`` as (H, W, C); raises UserError for another rank, or for H > 1 if ``axes`` is 1."""
    if len(shape) != 3:
        raise UserError(
            f"layer {index}, {type(layer).__name__}, must get images (H, W, C), got {shape}; place it before Flatten"
        )
    if axes == 1 and shape[0] != 1:
        raise UserError(
            f"layer {index}, {type(layer).__name__}, must get sequences (1, T, C), got {shape}; use its 2-D sibling"
        )
    return shape[0], shape[1], shape[2]


_GAIN = {"xavier": 3.0, "he": 6.0}


def bound(init: str, fan_in: int) -> float:
    """Return the bound of uniform initial weights.

    ``xavier``: variance 1 / fan_in, as in Caffe (after Glorot and Bengio 2010). ``he``: variance 2 / fan_in (He et al.
    2015, eq. 10), for layers before a ReLU. Raises UserError for another name.
    """
    if init not in _GAIN:
        raise UserError(f"init must name a distribution, got {init!r}; {nearest(init, _GAIN)}")
    return sqrt(_GAIN[init] / fan_in)


def layers(given: object) -> list[Any]:
    """Return the layers of a model; raises UserError if it is not a list of layers, or has one of them twice."""
    model = list(given) if isinstance(given, Sequence) else []
    if not model or not all(hasattr(layer, "setup") for layer in model):
        fix = "give model={name: torch, build: ...}" if hasattr(given, "state_dict") else "return one"
        raise UserError(f"a model must be a list of layers, got {type(given).__name__}; {fix}")
    for number, layer in enumerate(model):
        if (first := next(n for n, other in enumerate(model) if other is layer)) < number:
            raise UserError(
                "every layer of a model must be an object of its own, got the same "
                f"{type(layer).__name__} as layers {first} and {number}; make one for each place"
            )
    return model
