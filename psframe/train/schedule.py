"""Learning rate schedules (:func:`learning_rate`), as functions of epochs done: independent of the rank count."""

from math import cos, inf, pi

from psframe.config.schema import Schedule


def learning_rate(
    schedule: Schedule, base_lr: float, epochs: int, global_batch: int, begun: float, ended: float
) -> float:
    """Return the learning rate of a step.

    ``constant``; ``step``: times ``gamma`` every ``step_epochs`` epochs; ``cosine``: half a cosine down to 0 at the end
    (Loshchilov and Hutter 2017). ``base_batch: B`` multiplies by global_batch / B, the linear scaling rule.
    ``warmup_epochs: E`` increases the rate linearly over the first E epochs, from the unscaled rate with that rule
    (Goyal et al. 2017, section 2.2), else from 0.

    Parameters
    ----------
    base_lr : float
        ``optimizer.lr``.
    begun, ended : float
        Epochs done before and after the step: 0 and 0.25 for the first of four steps.
    """
    scale = global_batch / schedule.base_batch if schedule.base_batch else 1.0
    if begun < schedule.warmup_epochs:
        start = base_lr if schedule.base_batch else 0.0
        return start + (base_lr * scale - start) * min(1.0, ended / schedule.warmup_epochs)
    if schedule.name == "step":
        try:
            return base_lr * scale * schedule.gamma ** int(begun / schedule.step_epochs)
        except OverflowError:  # gamma > 1: the run diverges, and the loss check reports it
            return inf
    if schedule.name == "cosine":
        share = (begun - schedule.warmup_epochs) / max(epochs - schedule.warmup_epochs, 1e-9)
        return base_lr * scale * (1 + cos(pi * min(1.0, share))) / 2
    return base_lr * scale
