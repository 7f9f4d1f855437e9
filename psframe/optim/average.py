"""Averages of parameters over steps (:class:`Average`): exponential, or of all alike."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Average:
    """Average ``a`` of the parameters ``w``: ``a <- a + rate (w - a)`` behind every update.

    ``swa`` is the mean of the parameters at ``begin_step`` and after every ``every_steps`` steps that follow (Izmailov
    et al. 2018, algorithm 1). ``ema`` forgets the share ``1 - decay`` of itself each time (Polyak and Juditsky 1992;
    Tan and Le 2019); until it has seen ``1 / (1 - decay)`` of them, it is their mean. Up to ``begin_step`` the average
    is the parameters themselves.
    """

    name: Literal["ema", "swa"]
    decay: float
    begin_step: int
    every_steps: int

    def rate(self, step: int) -> float:
        """Return the share of the average that the parameters after ``step``, which counts from 1, are to be."""
        n, beside = divmod(step - self.begin_step, self.every_steps)
        if step <= self.begin_step:
            return 1.0
        if beside:
            return 0.0
        mean = 1 / (n + 1)
        return max(1 - self.decay, mean) if self.name == "ema" else mean
