"""Trial of a user's own optimizer before training (:func:`check`): it must update elementwise and deterministically.

Ranks update slices of the parameters, cut according to the collective and the number of ranks. The result of an
optimizer that uses more than each element (the norm of a layer, say) would depend on the cut.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, get_args

import numpy as np

from psframe.config.registry import Choice
from psframe.errors import UserError, raised
from psframe.memory.extent import Places
from psframe.optim import CompiledOptimizer

N = 193  # elements of the trial's vector
ZEROS = slice(5, N, 17)  # elements without a gradient, as between two tensors and behind a dead ReLU
#: (step, gradient scale) of the updates of a trial; a limit by a norm shows at one of the scales
STEPS = ((1, 1.0), (2, 1e3), (10_000, 1e-3))
#: cuts of the vector; their slices end inside and at the end of SIMD vectors of every usual width
CUTS = ([0, N], [0, 1, 8, 40, 41, 105, N], list(range(N + 1)))
MAX_STATE = 64

Ended = tuple[np.ndarray, np.ndarray]  #: parameters (N,) and state (n_state, N)


def check(choice: Choice, reproducible: str) -> Places:
    """Try an optimizer, unless it is a compiled rule, on a small vector, in one piece and in slices.

    Returns the places at which it lets vectors be cut; slices are tried if that is anywhere.

    Parameters
    ----------
    choice : Choice
        Makes a new optimizer for every trial.
    reproducible : str
        ``train.reproducible``; with ``none``, updates may be random.

    Raises
    ------
    UserError
        If the optimizer lacks an attribute, raises, updates an element depending on others in its slice, or divides by
        a gradient of 0.
    """
    made = choice()
    cuts: Places = getattr(made, "cuts", "anywhere")
    if isinstance(made, CompiledOptimizer):
        return cuts
    _check_attributes(choice)
    uncut, repeat, *parts = (_tried(choice, cut) for cut in (CUTS[0], *(CUTS if cuts == "anywhere" else CUTS[:1])))
    if not _same(uncut, repeat) and reproducible != "none":
        raise UserError(
            f"an optimizer must do the same when it is given the same, got {choice.name!r}, which does not; draw "
            "nothing at random and keep nothing outside of `state`, or give train.reproducible=none"
        )
    if not np.isfinite(uncut[0][ZEROS]).all():
        raise UserError(
            "an optimizer must leave numbers finite whose gradient is 0 in every step, as it is between two tensors, "
            f"got {choice.name!r}, which does not; add a small eps to what it divides by"
        )
    if _same(uncut, repeat) and not all(_same(uncut, part) for part in parts):
        raise UserError(
            "an optimizer must change each number by its own gradient and state alone, since it is given slices of the "
            f"parameters, got {choice.name!r}, whose update of a slice depends on what lies beside it (a norm, a mean, "
            "or something it keeps outside of `state`); leave that out, or give it cuts = 'tensors'"
        )
    return cuts


def _check_attributes(choice: Choice) -> None:
    optimizer = choice()
    if not all(hasattr(optimizer, name) for name in ("lr", "n_state", "update")):
        raise UserError(
            f"an optimizer must have lr, n_state and update, got {optimizer!r}; see psframe.optim.Optimizer"
        )
    lr, n_state, cuts = optimizer.lr, optimizer.n_state, getattr(optimizer, "cuts", "anywhere")
    if cuts not in get_args(Places):
        raise UserError(f"an optimizer's cuts must be {' or '.join(get_args(Places))}, got {cuts!r}; mend it")
    if not isinstance(n_state, int) or not 0 <= n_state <= MAX_STATE:
        raise UserError(f"an optimizer's n_state must be a number of rows, 0 to {MAX_STATE}, got {n_state!r}; mend it")
    if not isinstance(lr, int | float | np.number) or not isfinite(lr):
        raise UserError(f"an optimizer's lr must be a finite number, got {lr!r}; mend it")


def _tried(choice: Choice, cuts: Sequence[int]) -> Ended:
    """Return parameters and state after the updates :data:`STEPS`, each done slice by slice."""
    random = np.random.Generator(np.random.PCG64(1))
    optimizer: Any = choice()
    params, state = random.standard_normal(N, np.float32), np.zeros((optimizer.n_state, N), np.float32)
    with np.errstate(all="ignore"):
        for step, scale in STEPS:
            grads = random.standard_normal(N, np.float32) * np.float32(scale)
            grads[ZEROS] = 0
            for begin, end in pairwise(cuts):
                try:
                    optimizer.update(params[begin:end], grads[begin:end], state[:, begin:end], optimizer.lr, step)
                except Exception as error:
                    raise UserError(
                        "an optimizer must take update(params, grads, state, lr, step) for any slice, got "
                        f"{choice.name!r}, which raised {raised(error, choice.name)} for {end - begin} number(s) in "
                        f"step {step}; mend it"
                    ) from None
    return params, state


def _same(one: Ended, other: Ended) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
