"""Stand-in for mpi4py (:func:`stand_in`): strategies can be imported and checked where there is no MPI."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from psframe.errors import UserError


class _Name(type):
    """Name of MPI, as a type: annotations and constants may have it, but it cannot be used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _used(f"{cls.__name__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _used(f"{cls.__name__}()")


class _MPI(ModuleType):
    """Module ``mpi4py.MPI``, which has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Name(name, (), {})
        setattr(self, name, made)
        return made


def stand_in() -> None:
    """Let ``from mpi4py import MPI`` of later imports bring the stand-in, unless MPI was imported already."""
    if "mpi4py.MPI" not in sys.modules:
        package: Any = ModuleType("mpi4py")
        package.rc, package.MPI = SimpleNamespace(), _MPI("mpi4py.MPI")
        sys.modules["mpi4py"], sys.modules["mpi4py.MPI"] = package, package.MPI


def _used(what: str) -> UserError:
    return UserError(
        f"a strategy must not use MPI before there are ranks, got MPI.{what} without any; use it later, or let "
        "ranks check the config: psframe train -n 4 CONFIG --dry-run"
    )
