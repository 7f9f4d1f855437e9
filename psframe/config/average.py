"""Section ``average`` of a config (:class:`Average`)."""

from typing import Literal

import msgspec

from psframe.config import effect
from psframe.config.registry import Count, Fraction, PositiveInt


class Average(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Average of the parameters, beside those that are trained (``psframe.optim.average``): the test set is evaluated
    with it, and a trained network has it. ``ema`` forgets the share ``1 - decay`` of itself with each step; ``swa`` is
    the mean of all. Up to ``begin_step`` the average is the parameters themselves; then it takes those of every
    ``every_steps``-th step."""

    name: Literal["none", "ema", "swa"] = "none"
    decay: Fraction = 0.999
    begin_step: Count = 0
    every_steps: PositiveInt = 1

    def unused(self) -> list[str]:
        """Return the keys that were given and that this average does not use."""
        used = {"none": (), "ema": ("decay", "begin_step", "every_steps"), "swa": ("begin_step", "every_steps")}
        return effect.without("average", self, used[self.name])
