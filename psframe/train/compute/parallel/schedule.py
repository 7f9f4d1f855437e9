"""Pipeline schedules (:func:`turns`): the order of a stage's forward and backward passes over micro-batches.

Both schedules sum a step's gradients from the first micro-batch to the last on every stage: their results are bitwise
equal, and equal to those of one process with the same micro-batches.
"""

from typing import Literal

Kind = Literal["1f1b", "gpipe"]
Turn = tuple[Literal["forward", "backward"], int]


def turns(kind: Kind, n_micro: int, n_stages: int, stage: int) -> list[Turn]:
    """Return the (direction, micro-batch) turns of a stage in a step of ``n_micro`` micro-batches.

    ``gpipe``: all forward, then all backward (Huang et al. 2019). ``1f1b``: alternate forward and backward as soon as
    one can go back (PipeDream-Flush: Narayanan et al. 2021), with as many idle turns and fewer activations kept.
    """
    ahead = n_micro if kind == "gpipe" else min(n_micro, n_stages - 1 - stage)
    order: list[Turn] = [("forward", k) for k in range(ahead)]
    for k in range(ahead, n_micro):
        order += [("forward", k), ("backward", k - ahead)]
    return order + [("backward", k) for k in range(n_micro - ahead, n_micro)]


def most_kept(kind: Kind, n_micro: int, n_stages: int, stage: int) -> int:
    """Return the maximum number of micro-batches that a stage has passed forward but not yet backward."""
    return n_micro if kind == "gpipe" else min(n_micro, n_stages - stage)


def bubble(n_micro: int, n_stages: int) -> float:
    """Return the idle share of a stage in one step, if all stages take equal time and steps do not overlap.

    (S - 1) / (m + S - 1), equal for both schedules.
    """
    return (n_stages - 1) / (n_micro + n_stages - 1)
