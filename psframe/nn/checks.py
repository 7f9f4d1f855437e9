"""Checks of layers' hyper-parameters (:func:`whole`, :func:`pair`) and input shapes (:func:`image`)."""

from collections.abc import Callable, Sequence
from math import sqrt
from numbers import Integral, Real
from typing import Any

from psframe.errors import UserError, nearest
from psframe.nn.base import Shape


def whole(name: str, value: object, low: int) -> int:
    """Return ``value``; raises UserError if it is not an integer of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value!r}; mend the model")
    return int(value)


def number(name: str, value: object, rule: str, holds: Callable[[Any], bool]) -> float:
    """Return ``value``; raises UserError, with the ``rule``, if it is not a number for which that ``holds``."""
    if not isinstance(value, Real) or isinstance(value, bool) or not holds(value):
        raise UserError(f"{name} must {rule}, got {value!r}; mend the model")
    return value if isinstance(value, (int, float)) else float(value)


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
    if not isinstance(init, str) or init not in _GAIN:
        raise UserError(f"init must name a distribution, got {init!r}; {nearest(init, _GAIN)}")
    return sqrt(_GAIN[init] / fan_in)


def layers(given: object, name: str = "a model", least: int = 1) -> list[Any]:
    """Return the layers of a model, or of a part of it.

    Raises UserError if ``given`` is not a list of at least ``least`` layers, or has one of them twice.
    """
    model = list(given) if isinstance(given, Sequence) else None
    if model is None or len(model) < least:
        raise _no_layers(name, given, "one without any" if model == [] else type(given).__name__)
    for number, layer in enumerate(model):
        if not hasattr(layer, "setup"):
            raise _no_layers(name, layer, f"{type(layer).__name__} as layer {number}, which has no setup")
        if (first := next(n for n, other in enumerate(model) if other is layer)) < number:
            raise UserError(
                "every layer of a model must be an object of its own, got the same "
                f"{type(layer).__name__} as layers {first} and {number}; make one for each place"
            )
    return model


def _no_layers(name: str, given: object, got: str) -> UserError:
    is_module = hasattr(given, "state_dict")
    fix = "give model={name: torch, build: ...}" if is_module else "give one, as [Flatten(), Dense(10)]"
    return UserError(f"{name} must be a list of layers, got {got}; {fix}")
