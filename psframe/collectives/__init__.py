"""How bytes move: the table of collectives.

============  ==============================================  ==============================
name          sync_ps                                         allreduce
============  ==============================================  ==============================
``buffer``    MPI Gatherv, canonical sum, MPI Bcast           MPI Allreduce, or under
                                                              ``reproducible: fixed_workers``
                                                              Alltoallv, sum, Allgatherv
``object``    the same with pickled arrays: mpi4py's gather,  allreduce, or alltoall and
              bcast                                           allgather
``null``      moves nothing, to measure everything else       moves nothing
============  ==============================================  ==============================
"""

from psframe.registry import Table

TABLE: Table = {
    "buffer": "psframe.collectives.buffer:Buffer",
    "object": "psframe.collectives.object:Object",
    "null": "psframe.collectives.null:Null",
}
