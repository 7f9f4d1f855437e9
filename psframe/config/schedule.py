"""Section ``schedule`` of a config (:class:`Schedule`)."""

from typing import Annotated, Literal

import msgspec

from psframe.config import effect
from psframe.config.registry import Count, NonNegative, Positive, PositiveInt

#: keys that a schedule uses, beside those of all
USED = {
    "constant": (),
    "step": ("step_epochs", "gamma"),
    "cosine": ("restart_epochs", "restart_factor", "end"),
    "polynomial": ("power", "end"),
    "one_cycle": ("start", "rise", "end"),
}


class Schedule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The learning rate over the epochs (``psframe.train.schedule``), as a factor of ``optimizer.lr``.

    ``constant``; ``step``: times ``gamma`` every ``step_epochs`` epochs; ``cosine``: half a cosine down to ``end``,
    which with ``restart_epochs`` begins anew after so many epochs, each time for ``restart_factor`` times as long;
    ``polynomial``: to the ``power``, down to ``end``; ``one_cycle``: from ``start`` up to 1 in the share ``rise`` of
    the steps, then down to ``end``."""

    name: Literal["constant", "step", "cosine", "polynomial", "one_cycle"] = "constant"
    step_epochs: PositiveInt = 10
    gamma: Positive = 0.1
    restart_epochs: Count = 0
    restart_factor: PositiveInt = 1
    power: Positive = 1.0
    start: NonNegative = 0.04
    rise: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    end: NonNegative = 0.0
    warmup_epochs: NonNegative = 0.0
    base_batch: PositiveInt | None = None

    def unused(self) -> list[str]:
        """Return the keys that were given and that this schedule does not use."""
        return effect.without("schedule", self, ("warmup_epochs", "base_batch", *USED[self.name]))
