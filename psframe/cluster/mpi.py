"""MPI, loaded when it is first used (:data:`MPI`): a config can be checked on a machine without one."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI
else:

    class _MPI:
        """Module ``mpi4py.MPI``, imported for its first attribute."""

        def __getattr__(self, name: str) -> Any:
            from mpi4py import MPI

            value = getattr(MPI, name)
            setattr(self, name, value)  # later uses cost a look-up
            return value

    MPI = _MPI()
