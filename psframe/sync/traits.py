"""Traits of a sync mode (:class:`Traits`): what is known of it from the config alone."""

from dataclasses import dataclass
from typing import Literal

from psframe.cluster.gates import DEADLINE_S, Wait


@dataclass(frozen=True)
class Traits:
    """What other parts may ask of a mode before there are ranks and memory; nobody changes it.

    Attributes
    ----------
    consistency : str
        ``step``: all ranks have the same parameters after every step; ``period``: all take the same steps, and come to
        the same parameters every few of them; ``none``: ranks take steps independently.
    server : str or None
        ``dedicated``: rank 0 computes no gradient; ``colocated``: it is a worker too; None: there is no server.
    n_servers : int
        Ranks that serve, a share of the parameters each.
    exchanges : bool
        Gradients or parameters go through ``collective``.
    keeps_store : bool
        Parameters or posts are in a store (``sync.store``).
    one_mean : bool
        A step is one mean over the gradients of all workers, so its bits need not depend on how many they are.
    overlaps : bool
        A step exchanges the gradients as backward leaves them, so they may leave while backward goes on.
    updates_shared : bool
        An update is of parameters that other ranks have, too, and so counts as bytes that move.
    averages : bool
        A step, or what draws workers together, takes means over workers. Statistics that each worker takes of its own
        batches then become those of all; applied one by one they would change too fast.
    survives : bool
        The other ranks can go on without a worker that died.
    drops : str
        Of what a gradient that is not finite can be dropped: ``steps``, by all ranks together; ``gradients``, by the
        server that gets it; ``nothing``.
    group_size : int, 'auto' or None
        Ranks of a group; None without groups.
    wait, deadline_s : str, float
        As in :class:`psframe.sync.base.SyncMode`.
    """

    consistency: Literal["step", "period", "none"]
    server: str | None = None
    n_servers: int = 1
    exchanges: bool = True
    keeps_store: bool = False
    one_mean: bool = False
    overlaps: bool = False
    updates_shared: bool = True
    averages: bool = False
    survives: bool = False
    drops: Literal["steps", "gradients", "nothing"] = "nothing"
    group_size: int | Literal["auto"] | None = None
    wait: Wait = "auto"
    deadline_s: float = DEADLINE_S

    @property
    def in_step(self) -> bool:
        """All ranks take the same steps at the same time."""
        return self.consistency != "none"

    @property
    def same_each_step(self) -> bool:
        """No rank begins a step before all have ended the one before, with the same parameters then."""
        return self.consistency == "step"

    @property
    def complete_on_rank_0(self) -> bool:
        """Rank 0 has all parameters and state between two steps, so a checkpoint may be written there."""
        return self.same_each_step and self.n_servers == 1

    @property
    def on_nan(self) -> tuple[str, ...]:
        """Values that ``fault.on_nan`` may have."""
        return {"steps": ("stop", "skip", "rollback"), "gradients": ("stop", "skip"), "nothing": ("stop",)}[self.drops]


#: of modes in which a step is one mean over all gradients, and all ranks take it or none does
SYNCHRONOUS = Traits("step", one_mean=True, overlaps=True, averages=True, survives=True, drops="steps")
