"""Numba's descriptions of what it can compile (:func:`load`), which it needs before the first compilation."""

import sys

from numba.core.registry import cpu_target


def load() -> None:
    """Load what is not loaded yet: a quarter of a second of CPU time."""
    _load_array_functions()
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _load_array_functions() -> None:
    """Import Numba's functions of arrays without SciPy's linear algebra, unless either has been imported.

    Numba imports the latter to see if it is there, which takes a fifth of a rank's CPU time at start, and does so again
    where jitted code needs it, as ``np.dot`` does.
    """
    if {"scipy.linalg", "numba.np.arraymath"} & sys.modules.keys():
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # its import fails
    try:
        from numba.np import arraymath
    finally:
        del sys.modules["scipy.linalg"]
    arraymath._HAVE_BLAS = "scipy" in sys.modules  # as it would have found
