"""Averages of parameters over steps: :func:`rate` is the share that the newest ones have."""

from psframe.config.average import Average


def rate(keys: Average, step: int) -> float:
    """Return the rate at which an average ``a`` follows the parameters ``w`` after a step, counted from 1.

    ``a <- a + rate (w - a)`` behind every update. ``swa`` is the mean of the parameters at ``begin_step`` and after
    every ``every_steps`` steps that follow (Izmailov et al. 2018, algorithm 1). ``ema`` forgets the share ``1 - decay``
    of itself each time (Polyak and Juditsky 1992; Tan and Le 2019); until it has seen ``1 / (1 - decay)`` of them, it
    is their mean. Up to ``begin_step`` the average is the parameters themselves. A step that was dropped is counted.
    """
    if step <= keys.begin_step:
        return 1.0
    n, beside = divmod(step - keys.begin_step, keys.every_steps)
    if beside:
        return 0.0
    mean = 1 / (n + 1)
    return max(1 - keys.decay, mean) if keys.name == "ema" else mean
