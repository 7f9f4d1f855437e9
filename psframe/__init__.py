"""psframe: data-parallel training of small convolutional networks on many-core CPUs over MPI."""

from typing import Any

__version__ = "0.1.0"

#: what the package shows, imported at its first use: a rank, and most commands, need none of it
_SHOWN = {"Run": "psframe.api.runs:Run", "open_run": "psframe.api.runs:Run"}


def __getattr__(name: str) -> Any:
    if name not in _SHOWN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _SHOWN[name].partition(":")
    return getattr(import_module(module), attribute)
