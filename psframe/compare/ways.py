"""Ways to train a point of a grid: under mpirun (:func:`really`), or on virtual ranks (:func:`virtually`)."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.compare.grid import Point
from psframe.errors import UserError

#: returns the records of a point's run, of a repeat from 0, in a new folder; and the complaint if it failed
Train = Callable[[Point, int, Path], tuple[list[dict[str, Any]], str]]


def really(arguments: Namespace) -> Train:
    """Return what trains a point under mpirun."""
    start = mpirun.launcher(arguments.mpirun)
    return lambda point, _, folder: sweep.train(
        start, point.n_ranks, point.config, [*arguments.set, *point.overrides], folder
    )


def virtually(arguments: Namespace) -> Train:
    """Return what trains a point on virtual ranks; a repeated one has another seed."""
    import mpi4py

    mpi4py.rc.initialize = False  # virtual ranks need no MPI, only its names
    from psframe.virtual import apart, asked

    request = asked.Simulations(arguments, sweep.counts(arguments.ranks))

    def train(point: Point, repeat: int, folder: Path) -> tuple[list[dict[str, Any]], str]:
        overrides = [*arguments.set, *point.overrides, f"record.dir={folder}"]
        try:
            simulation = request.simulation(point.config, overrides, point.n_ranks, repeat)
        except UserError as error:
            return [], str(error)
        (answer,) = apart.apart([partial(asked.records, simulation)])
        return answer.get("records", []), answer.get("error", "")

    return train
