"""Range test of learning rates (:class:`LearningRateFinder`)."""

from math import inf, isfinite

import numpy as np

from psframe.errors import UserError
from psframe.train.callbacks.base import Callback, Control

SMOOTHED = 5  # losses that are averaged before the slope is taken


class LearningRateFinder(Callback):
    """Train with rates that grow from step to step, and note the losses (Smith 2017, section 3.3).

    The run ends after the last rate, or where the loss is ``diverges`` times the smallest one; its network is of no
    use. All ranks pause to change the rate, so the test takes longer than as many steps of training. The schedule
    scales the rates and should be ``constant``.

    Parameters
    ----------
    lowest, highest : float
        Range of the rates, which grow by a constant factor.
    steps : int
        Number of rates.
    diverges : float

    Attributes
    ----------
    rates, losses : list of float
        Of each pause.
    """

    def __init__(self, lowest: float = 1e-5, highest: float = 1.0, steps: int = 100, diverges: float = 4.0):
        if not 0 < lowest < highest < inf or steps < 2:
            raise UserError(
                f"a range test takes 0 < lowest < highest and two steps or more, got {lowest}, {highest} and {steps}; "
                "mend them"
            )
        self.lowest, self.factor, self.steps = lowest, (highest / lowest) ** (1 / (steps - 1)), steps
        self.diverges, self.tried, self.boundaries = diverges, 0.0, -1
        self.rates: list[float] = []
        self.losses: list[float] = []

    def on_run_begin(self, control: Control) -> None:
        control.set_lr(self.lowest)

    def on_step_end(self, control: Control) -> None:
        if control.boundaries == self.boundaries:
            return None  # the pause is still to come
        self.boundaries = control.boundaries
        if self.tried and control.loss is not None:
            self.rates.append(self.tried)
            self.losses.append(control.loss)
            smallest = min(self.losses)
            if not isfinite(control.loss) or control.loss > self.diverges * smallest or len(self.rates) == self.steps:
                return control.stop(f"the range test of {len(self.rates)} learning rates is done")
        self.tried = control.lr
        control.set_lr(self.lowest * self.factor ** min(len(self.rates) + 1, self.steps - 1))
        return None

    @property
    def suggestion(self) -> float | None:
        """Rate at which the smoothed loss falls fastest; None with too few losses."""
        losses = [loss for loss in self.losses if isfinite(loss)]
        if len(losses) <= SMOOTHED:
            return None
        smooth = np.convolve(losses, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
        middle = SMOOTHED // 2
        rates = self.rates[middle : middle + len(smooth)]
        return rates[int(np.argmin(np.gradient(smooth, np.log(rates))))]
