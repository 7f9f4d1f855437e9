"""Table of sync modes (:data:`TABLE`): the time and place at which gradients are applied.

==================  ===================================================================================================
name                parameters
==================  ===================================================================================================
``sync_ps``         one version: rank 0 applies the mean of all gradients of a step (or of the first ones)
``allreduce``       the same without a server
``async_ps``        rank 0 applies each gradient as it arrives; optionally bounded, accumulated or compensated
``easgd``           a vector per worker, which an elastic force draws to a centre
``hogwild``         one vector, updated by all ranks of a node without locks
``dogwild``         such a vector per group of ranks; differences are exchanged with a master
``local_sgd``       a vector per worker, averaged every few steps
``block_momentum``  the same, with momentum on the average
``hybrid``          one version per group of ranks, which an elastic force draws to a centre
==================  ===================================================================================================
"""

from dataclasses import dataclass
from typing import Any, Literal

from psframe.cluster.gates import DEADLINE_S, Wait
from psframe.config.registry import Deadline, Table

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


@dataclass(frozen=True, kw_only=True)
class Common:
    """Keys of ``sync`` that all modes have.

    Attributes
    ----------
    balance : str
        ``none``: all workers take equal shares of a step; ``speed``: shares in proportion to their measured speed.
    wait : str
        Waits of a node's ranks for each other. ``block``: in the kernel; ``auto``: the same, after spinning for about
        the time of a wake-up if every rank has a core; ``spin``: spinning only.
    deadline_s : float
        Timeout in seconds; the rank that did not arrive then counts as stuck.
    """

    balance: Literal["none", "speed"] = "none"
    wait: Wait = "auto"
    deadline_s: Deadline = DEADLINE_S


def make(choice: Any) -> Any:
    """Return the sync mode that ``choice`` makes, as a :class:`psframe.sync.base.Mode`."""
    from psframe.sync.base import Mode, UserMode

    mode = choice()
    return mode if isinstance(mode, Mode) else UserMode(mode)
