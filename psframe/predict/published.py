"""Published measurements on a Knights Landing, compared with the model's (:func:`woo`).

Woo, Choi and Lee 2020, "Empirical Performance Analysis of Collective Communication for Distributed Deep Learning in a
Many-Core CPU Environment", tables 1 and 5: their Python buffer method (mpi4py over Intel MPI 2017.3) on the host, a
Xeon Phi with 68 cores; Bcast and AllReduce of 256 MB, Gather of 16 MB.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from psframe.predict.exchange import Node
from psframe.predict.machine import Machine, read

MB = float(1 << 20)
OPERATIONS: dict[str, tuple[float, Callable[[Node, float], float]]] = {
    "Bcast": (256 * MB, Node.bcast_s),
    "Gather": (16 * MB, Node.gather_s),
    "AllReduce": (256 * MB, Node.allreduce_s),
}


@dataclass(frozen=True)
class Known:
    """A figure of a table.

    Attributes
    ----------
    what, unit : str
        The unit is ``s``, or ``x``, the time in DDR4 over that in MCDRAM.
    ranks : int
    measured, predicted : float
    calibrates : bool
        True if a figure of the machine's profile was fitted to it.
    """

    what: str
    unit: str
    ranks: int
    measured: float
    predicted: float
    calibrates: bool = False

    @property
    def error(self) -> float:
        """The prediction's relative error: predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@cache
def woo() -> list[Known]:
    """Return the figures of the buffer method on the host."""
    seconds = [("Bcast", 32, 0.285, False), ("Gather", 32, 0.194, True), ("AllReduce", 32, 1.261, True)]
    ratios = [("Bcast", 16, 5.45), ("Gather", 64, 1.59), ("AllReduce", 68, 2.62)]
    figures = [
        Known(f"{name}, MCDRAM", "s", ranks, measured, _seconds("mcdram", name, ranks), calibrates)
        for name, ranks, measured, calibrates in seconds
    ]
    for name, ranks, measured in ratios:
        predicted = _seconds("ddr", name, ranks) / _seconds("mcdram", name, ranks)
        figures.append(Known(f"{name}, DDR4 over MCDRAM", "x", ranks, measured, predicted))
    return figures


def _seconds(memory: str, name: str, ranks: int) -> float:
    n_bytes, operation = OPERATIONS[name]
    return operation(Node(_machine(memory), ranks), n_bytes)


@cache
def _machine(memory: str) -> Machine:
    return read(f"knl-7250-{memory}")
