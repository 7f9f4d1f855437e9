"""How commands over ranks begin: MPI is started, and threads are limited to a rank's cores, before NumPy is there."""

import sys

from psframe.startup import begin_mpi, without_mpi


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

    from psframe import affinity

    try:
        affinity.limit_threads(MPI.COMM_WORLD)
    except MPI.Exception as error:
        from psframe.command import give_up

        sys.exit(give_up(error))
