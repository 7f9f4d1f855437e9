"""Numba compilation with IEEE arithmetic (:func:`jit`), so that runs agree to the bit.

``jit`` is for functions called from Python; their code is cached on disk, per type of CPU. ``inner`` is for functions
called only from jitted code, ``inline`` for those to be inlined there.
"""

import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psframe.errors import UserError, reason
from psframe.nn import numba_settings

numba_settings.load()

import numba  # noqa: E402
from numba.core import event  # noqa: E402
from numba.core.errors import NumbaError  # noqa: E402

from psframe.nn import compiler_data  # noqa: E402
from psframe.nn.code_files import Code  # noqa: E402


def _options_of_inner() -> dict[str, Any]:
    """Return how to compile what only jitted code calls; as everything else where Numba's parts are elsewhere."""
    try:
        from psframe.nn import inlined
    except ImportError:
        return {}
    return inlined.options()


_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

_INNER = {"no_cpython_wrapper": True, **_OPTIONS, **_options_of_inner()}

inner = numba.njit(**_INNER)
inline = numba.njit(forceinline=True, **_INNER)


class _Collector(event.Listener):
    """Puts garbage collection off until a compilation ends: it would look through Numba's objects, which stay."""

    def __init__(self) -> None:
        self._depth, self._was_on = 0, False  # Numba compiles what a function calls within, under a lock

    def on_start(self, event: event.Event) -> None:
        """Put collection off."""
        if self._depth == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Turn it on again, if it was on."""
        self._depth -= 1
        if self._depth == 0 and self._was_on:
            gc.enable()


event.register("numba:compile", _Collector())


def _folder() -> str:
    """Return the cache folder for code compiled from these sources.

    Numba checks only a function's own file for changes, not the files of functions that it calls.
    """
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return str(folder / "__pycache__" / digest.hexdigest()[:16])


_FOLDER = numba.config.CACHE_DIR or _folder()


def jit(function: Callable[..., Any]) -> Any:
    """Compile ``function`` at its first call, or load its cached code.

    If psframe's folder is not writable, Numba chooses one in the user's home; without that, every process compiles for
    itself.
    """
    compiled = numba.njit(**_OPTIONS)(function)
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _FOLDER
    try:
        compiled._cache = Code(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        compiler_data.load()
    finally:
        numba.config.CACHE_DIR = before
    return compiled


@contextmanager
def compiling(kernels: str) -> Iterator[None]:
    """Turn errors that Numba raises while compiling the named ``kernels`` into a UserError."""
    try:
        yield
    except NumbaError as error:
        raise UserError(
            f"nn.kernels: {kernels} must be compiled for this CPU, and Numba cannot ({reason(error)[:200]}); "
            "give nn.kernels=blas"
        ) from None
