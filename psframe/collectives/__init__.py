"""How bytes move: the table of collectives.

================  ==============================================  ==============================
name              sync_ps                                         allreduce
================  ==============================================  ==============================
``shared``        one node: every reducer sums a segment in       the same
                  shared memory, and updates it
``hierarchical``  the same in each node; between nodes a sum by   the same
                  MPI, and every node updates its own
``buffer``        MPI Igatherv, canonical sum, MPI Bcast; or      MPI Iallreduce, or under
                  Ireduce; of several servers Ialltoallv or       ``reproducible: fixed_workers``
                  Ireduce to each, Allgatherv                     Ialltoallv, sum, Allgatherv
``object``        the same with pickled arrays: mpi4py's gather,  allreduce, or alltoall and
                  bcast                                           allgather
``null``          moves nothing, to measure everything else       moves nothing
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
    """Return a collective with all that others may ask of one, and encoded as its ``compression`` says.

    ``choice`` makes it from the other arguments; see :class:`psframe.collectives.base.Collective`.
    """
    from psframe.collectives.base import Adapted, Base
    from psframe.collectives.compression import Compressed
    from psframe.collectives.sharded import Sharded

    if len(team.servers) > 1:  # which a collective can have whose traits say ``among_servers``
        choice = replace(choice, make=Sharded)
    made = choice(team, size, allocator, reproducible)
    if not isinstance(made, Base):
        return Adapted(made, team, size, allocator, reproducible)
    return Compressed(made, made.compression) if made.carrier and made.compression != "none" else made
