"""Who applies which gradient when: the table of sync modes."""

from psframe.registry import Table

TABLE: Table = {
    "sync_ps": "psframe.sync.sync_ps:SyncPS",
    "allreduce": "psframe.sync.allreduce:AllReduce",
}
