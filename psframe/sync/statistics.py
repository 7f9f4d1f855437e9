"""Which modes and collectives a model may have that keeps statistics of its batches."""

from psframe.collectives.base import Base
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.sync.base import Mode


def judge(layout: Layout, name: str, mode: Mode, collective: Base) -> None:
    """UserError where a model has tensors that are statistics, and workers would not come to the same ones.

    Parameters
    ----------
    name : str
        The mode's, in the config.
    """
    which = next((of_slot for of_slot, slot in layout.slots.items() if slot.start >= layout.n_trained), None)
    if which is None:
        return
    which = which.split(".", 2)[-1]  # as the module has it
    rule = "where the model keeps statistics of its batches"
    instead = "or let the model keep none, as by GroupNorm, or BatchNorm with track_running_stats=False"
    if not mode.keeps_statistics:
        raise UserError(
            f"sync.mode must take means over workers {rule}, got {name} and {which}; give sync_ps, allreduce, "
            f"local_sgd, block_momentum or easgd, {instead}"
        )
    if not collective.exact:
        raise UserError(f"collective.compression must be none {rule}, got one and {which}; give none, {instead}")
