"""Start of commands over ranks (:func:`over_ranks`): MPI, and a limit on threads, before NumPy is imported."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from psframe.cluster.startup import begin_mpi, without_mpi


def over_ranks() -> None:
    """Start MPI and limit threads, or end this process with a message if that fails. All ranks must call."""
    try:
        begin_mpi()
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        without_mpi(error)
    limit_threads()


def limit_threads() -> None:
    """Limit each rank's threads to its cores, or end the job if a rank has died. All must call, after MPI starts."""
    from mpi4py import MPI

    from psframe.cluster import affinity

    try:
        affinity.limit_threads(MPI.COMM_WORLD)
    except MPI.Exception as error:
        from psframe.cluster.command import give_up

        sys.exit(give_up(error))


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection during imports, and exclude the objects they leave from later collections.

    Numba's modules are tens of thousands of objects, which the collector traverses again and again: a fifth of a rank's
    startup time, and a tenth of compile time. A collector that the caller has disabled stays disabled.
    """
    before, was_on = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if was_on:
            gc.enable()
