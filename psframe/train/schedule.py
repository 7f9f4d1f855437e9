"""Learning rate schedules (:func:`learning_rate`), as functions of epochs done: independent of the rank count."""

from collections.abc import Callable
from math import cos, inf, pi

from psframe.config.schema import Schedule

TINY = 1e-9  # epochs, in place of a length of 0; the roundings of sums of epochs are smaller


def learning_rate(
    schedule: Schedule, base_lr: float, epochs: int, global_batch: int, begun: float, ended: float
) -> float:
    """Return the learning rate of a step.

    ``base_batch: B`` multiplies the schedule's by global_batch / B, the linear scaling rule. ``warmup_epochs: E``
    increases the rate linearly over the first E epochs, from the unscaled rate with that rule (Goyal et al. 2017,
    section 2.2), else from 0.

    Parameters
    ----------
    base_lr : float
        ``optimizer.lr``.
    begun, ended : float
        Epochs done before and after the step: 0 and 0.25 for the first of four steps.
    """
    scale = global_batch / schedule.base_batch if schedule.base_batch else 1.0
    warm = schedule.warmup_epochs
    if begun < warm:
        start = base_lr if schedule.base_batch else 0.0
        return start + (base_lr * scale - start) * min(1.0, ended / warm)
    if schedule.name == "constant":
        return base_lr * scale
    if schedule.name == "step":
        try:
            return base_lr * scale * schedule.gamma ** int(begun / schedule.step_epochs)
        except OverflowError:  # gamma > 1: the run diverges, and the loss check reports it
            return inf
    return base_lr * scale * FACTORS[schedule.name](schedule, begun - warm, ended - warm, epochs - warm)


def falls_to_the_end(schedule: Schedule) -> bool:
    """Return True if the rate of a step depends on the number of epochs planned."""
    return schedule.name in FACTORS and not schedule.restart_epochs


def _cosine(schedule: Schedule, begun: float, ended: float, epochs: float) -> float:
    """Half a cosine down to ``end`` (Loshchilov and Hutter 2017, equation 5).

    With ``restart_epochs`` it begins anew after so many epochs, and each time lasts ``restart_factor`` times as long.
    """
    length = float(schedule.restart_epochs) or max(epochs, TINY)
    if schedule.restart_epochs and schedule.restart_factor == 1:
        begun %= length
    # a step may begin a rounding before the restart, as behind 0.3 epochs of warm-up
    while schedule.restart_epochs and begun >= length - TINY:
        begun, length = max(0.0, begun - length), length * schedule.restart_factor
    return schedule.end + (1 - schedule.end) * _half_cosine(begun / length)


def _polynomial(schedule: Schedule, begun: float, ended: float, epochs: float) -> float:
    """``(1 - t / T)^power`` down to ``end``."""
    left = 1 - min(1.0, begun / max(epochs, TINY))
    return schedule.end + (1 - schedule.end) * left**schedule.power


def _one_cycle(schedule: Schedule, begun: float, ended: float, epochs: float) -> float:
    """Half a cosine from ``start`` up to 1 in the share ``rise`` of all steps, and another one down to ``end``.

    Smith and Topin 2018, as PyTorch has it: the last step has the last rate. The momentum stays as it is.
    """
    one = ended - begun
    top, last = schedule.rise * epochs - one, max(epochs - one, TINY)
    if begun <= top:
        return 1 - (1 - schedule.start) * _half_cosine(begun / max(top, TINY))
    share = (begun - top) / max(last - top, TINY)
    return schedule.end + (1 - schedule.end) * _half_cosine(min(1.0, share))


def _half_cosine(share: float) -> float:
    return (1 + cos(pi * min(1.0, share))) / 2


#: factor of the rate by schedule, of the epochs begun, ended and planned, all since the warm-up
FACTORS: dict[str, Callable[[Schedule, float, float, float], float]] = {
    "cosine": _cosine,
    "polynomial": _polynomial,
    "one_cycle": _one_cycle,
}
