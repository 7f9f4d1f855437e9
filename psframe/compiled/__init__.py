"""Cython extensions, imported on first use (:func:`__getattr__`): ``compiled.random``, ``compiled.batch`` and so on."""

import importlib
from typing import Any

from psframe.errors import UserError, limits

_NAMES = ("random", "elementwise", "batch", "numa", "memkind", "sync", "rooms", "flight")
_MODULES = {name: f"psframe.compiled._{name}" for name in _NAMES}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        if limits.met(error):
            raise
        raise UserError(
            f"psframe's compiled module {_MODULES[name]} must be built before use, and cannot be imported ({error}); "
            "run `pip install -e .` in the checkout, or start from another folder if psframe is installed as a wheel"
        ) from None
    globals()[name] = module
    return module
