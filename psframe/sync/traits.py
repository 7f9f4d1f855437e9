"""Traits of a sync mode (:class:`Traits`): its properties that follow from the config alone."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Traits:
    """Properties of a mode that other parts may read before there are ranks and memory; immutable.

    Attributes
    ----------
    consistency : str
        ``step``: all ranks have the same parameters after every step; ``period``: all ranks do the same steps, and have
        the same parameters after every few of them; ``none``: ranks do steps independently.
    server : str or None
        ``dedicated``: servers compute no gradients; ``colocated``: they are workers too; None: no server.
    n_servers : int
        Number of servers, each with a share of the parameters.
    exchanges : bool
        True if gradients or parameters go through ``collective``.
    store : str or None
        Store of parameters or posts, as ``sync.store`` names it; None without one.
    one_mean : bool
        True if a step applies one mean over the gradients of all workers: its bits need not depend on their number.
    overlaps : bool
        True if a step exchanges the gradients as backward leaves them, so that they may be sent during backward.
    updates_shared : bool
        True if an update changes parameters that other ranks have too, so that its bytes count as moved.
    averages_statistics : bool
        True if gradients or parameters are averaged over workers. Statistics that each worker computes of its own
        batches are then averaged too; applied one by one they would change too fast.
    survives : bool
        True if the other ranks can continue without one that died.
    drops : str
        Unit that can be dropped for a non-finite gradient: ``steps``, by all ranks together; ``gradients``, by the
        server that receives them; ``nothing``.
    group_size : int, 'auto' or None
        Ranks of a group; None without groups.
    """

    consistency: Literal["step", "period", "none"]
    server: str | None = None
    n_servers: int = 1
    exchanges: bool = True
    store: str | None = None
    one_mean: bool = False
    overlaps: bool = False
    updates_shared: bool = True
    averages_statistics: bool = False
    survives: bool = False
    drops: Literal["steps", "gradients", "nothing"] = "nothing"
    group_size: int | Literal["auto"] | None = None

    @property
    def in_step(self) -> bool:
        """True if all ranks do the same steps at the same time."""
        return self.consistency != "none"

    @property
    def same_each_step(self) -> bool:
        """True if no rank begins a step before all ranks have ended the previous one with the same parameters."""
        return self.consistency == "step"

    @property
    def complete_on_rank_0(self) -> bool:
        """True if rank 0 has all parameters and state between two steps, and so can write a checkpoint there."""
        return self.same_each_step and self.n_servers == 1

    @property
    def updates_once_a_step(self) -> bool:
        """True if the optimizer updates the run's one model once in each step, by a mean over workers."""
        return self.same_each_step or (self.server == "dedicated" and self.averages_statistics)

    @property
    def on_nan(self) -> tuple[str, ...]:
        """Valid values of ``fault.on_nan``."""
        return {"steps": ("stop", "skip", "rollback"), "gradients": ("stop", "skip"), "nothing": ("stop",)}[self.drops]


#: of modes in which a step applies one mean over all gradients, on all ranks or on none
SYNCHRONOUS = Traits("step", one_mean=True, overlaps=True, averages_statistics=True, survives=True, drops="steps")
