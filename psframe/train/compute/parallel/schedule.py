"""In which order a stage of a pipeline passes its micro-batches forward and back.

Both orders have a step's gradients summed from the first micro-batch to the last, on every stage: they end in the same
bits, and in those of one process with the same micro-batches.
"""

from typing import Literal

Kind = Literal["1f1b", "gpipe"]
Turn = tuple[Literal["forward", "backward"], int]


def turns(kind: Kind, n_micro: int, n_stages: int, stage: int) -> list[Turn]:
    """Return what a stage does in a step of ``n_micro`` micro-batches: which direction, and which of them.

    ``gpipe``: all forward, then all back (Huang et al. 2019). ``1f1b``: one forward, one back, as soon as there is one
    to go back (PipeDream-Flush: Narayanan et al. 2021), which leaves as many idle turns and keeps fewer activations.
    """
    ahead = n_micro if kind == "gpipe" else min(n_micro, n_stages - 1 - stage)
    found: list[Turn] = [("forward", k) for k in range(ahead)]
    for k in range(ahead, n_micro):
        found += [("forward", k), ("backward", k - ahead)]
    return found + [("backward", k) for k in range(n_micro - ahead, n_micro)]


def most_kept(kind: Kind, n_micro: int, n_stages: int, stage: int) -> int:
    """Return how many micro-batches a stage has passed forward and not yet back, at most."""
    return n_micro if kind == "gpipe" else min(n_micro, n_stages - stage)


def bubble(n_micro: int, n_stages: int) -> float:
    """Return the share of a step in which a stage is idle, where all take the same time, and no step follows another.

    (S - 1) / (m + S - 1), the same for both kinds.
    """
    return (n_stages - 1) / (n_micro + n_stages - 1)
