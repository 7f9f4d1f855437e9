"""How commands over ranks begin: MPI is started, and threads are limited to a rank's cores, before NumPy is there."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from psframe.cluster.startup import begin_mpi, without_mpi


def over_ranks() -> None:
    """Start MPI and limit threads, or end this process in a sentence where that cannot be. All ranks must call."""
    try:
        begin_mpi()
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        without_mpi(error)
    limit_threads()


def limit_threads() -> None:
    """Limit the threads of each rank, or end the job where one has died. All ranks must call, once MPI has started."""
    from mpi4py import MPI

    from psframe.cluster import affinity

    try:
        affinity.limit_threads(MPI.COMM_WORLD)
    except MPI.Exception as error:
        from psframe.cluster.command import give_up

        sys.exit(give_up(error))


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage while modules are imported, nor later among what they are made of.

    Numba's are tens of thousands of objects. The collector passes over all of them again and again: a fifth of what it
    takes a rank to start, and a tenth of what compiling takes. One that the caller has turned off stays off.
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
