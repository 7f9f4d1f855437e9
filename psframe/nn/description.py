"""Text of a layer's type and attributes (:func:`description`), by which ranks compare their networks."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np

DEPTH = 4  # of nested values
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def description(layer: Any) -> str:
    """Return a layer's type and attributes: the same text in every process that computes the same."""
    inside = ", ".join(f"{name}={_value(value, DEPTH - 1)}" for name, value in sorted(vars(layer).items()))
    return f"{type(layer).__qualname__}({inside})"


def _value(value: Any, depth: int) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | slice | range | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} {sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]}"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__)
    if depth <= 0:
        return type(value).__qualname__
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_value(k, depth - 1)}: {_value(v, depth - 1)}' for k, v in value.items())}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(_value(item, depth - 1) for item in value))}}}"  # sets have no fixed order
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item, depth - 1) for item in value)}]"
    if is_dataclass(value):
        inside = ", ".join(f"{f.name}={_value(getattr(value, f.name), depth - 1)}" for f in fields(value))
        return f"{type(value).__qualname__}({inside})"
    if type(value).__repr__ is object.__repr__:
        return type(value).__qualname__
    return ADDRESS.sub("", repr(value))
