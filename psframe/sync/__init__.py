"""Who applies which gradient when: the table of sync modes.

==================  ===================================================================================================
name                parameters
==================  ===================================================================================================
``sync_ps``         one version: rank 0 updates them by the mean of all gradients of a step (or of the first ones)
``allreduce``       the same without a server
``async_ps``        rank 0 updates them by each gradient as it arrives; bounded, accumulated or compensated if asked for
``easgd``           every worker has its own, which an elastic force draws to a centre
``hogwild``         one vector, which all ranks of a node update without locks
``dogwild``         such a vector a group of ranks; differences are exchanged with a master
``local_sgd``       every worker has its own, averaged every few steps
``block_momentum``  the same, and the average moves on with momentum
``hybrid``          one version in a group of ranks, which an elastic force draws to a centre
==================  ===================================================================================================
"""

from typing import Any

from psframe.config.registry import Table

TABLE: Table = {
    "sync_ps": "psframe.sync.sync_ps:sync_ps",
    "allreduce": "psframe.sync.allreduce:AllReduce",
    "async_ps": "psframe.sync.async_ps:async_ps",
    "easgd": "psframe.sync.easgd:easgd",
    "hogwild": "psframe.sync.hogwild:Hogwild",
    "dogwild": "psframe.sync.dogwild:Dogwild",
    "local_sgd": "psframe.sync.local_sgd:LocalSGD",
    "block_momentum": "psframe.sync.block_momentum:BlockMomentum",
    "hybrid": "psframe.sync.hybrid:Hybrid",
}


def make(choice: Any) -> Any:
    """Return the sync mode that ``choice`` makes, with all that others may ask of one (``psframe.sync.base.Mode``)."""
    from psframe.sync.base import Mode, Own

    made = choice()
    return made if isinstance(made, Mode) else Own(made)
