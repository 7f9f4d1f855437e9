"""Table of collectives (:data:`TABLE`): the ways to move parameters and gradients.

================  ==============================================  ==============================
name              sync_ps                                         allreduce
================  ==============================================  ==============================
``shared``        one node: every reducer sums a segment in       the same
                  shared memory, and updates it
``hierarchical``  the same in each node; a sum by MPI between     the same
                  nodes; every node updates its own copy
``buffer``        MPI Igatherv, canonical sum, MPI Bcast; or      MPI Iallreduce, or under
                  Ireduce; with several servers, Ialltoallv or    ``reproducible: fixed_workers``
                  Ireduce to each, Allgatherv                     Ialltoallv, sum, Allgatherv
``object``        the same with pickled arrays: mpi4py's gather,  allreduce, or alltoall and
                  bcast                                           allgather
``null``          moves nothing, to measure all other costs       moves nothing
================  ==============================================  ==============================
"""

from dataclasses import replace
from typing import Any

from psframe.config.registry import Table

TABLE: Table = {
    "shared": "psframe.collectives.shared:Shared",
    "hierarchical": "psframe.collectives.hierarchical:Hierarchical",
    "buffer": "psframe.collectives.buffer:Buffer",
    "object": "psframe.collectives.object:Object",
    "null": "psframe.collectives.null:Null",
}


def make(choice: Any, team: Any, size: int, allocator: Any, reproducible: str) -> Any:
    """Call ``choice`` with the others; return the :class:`psframe.collectives.base.BaseCollective` that it makes.

    With ``compression``, that is :class:`psframe.collectives.compression.Compressed` around it.
    """
    from psframe.collectives.base import BaseCollective, UserCollective

    if len(team.servers) > 1:
        from psframe.collectives.buffer import Buffer
        from psframe.collectives.sharded import Sharded

        choice = replace(choice, make=Sharded) if choice.make is Buffer else choice
    collective = choice(team, size, allocator, reproducible)
    if not isinstance(collective, BaseCollective):
        return UserCollective(collective, team, size, allocator, reproducible)
    return collective.encoded()
