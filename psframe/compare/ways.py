"""Ways to train a point of a grid: under mpirun (:func:`really`), or on virtual ranks (:func:`virtually`)."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.compare.grid import Point
from psframe.errors import UserError

Found = tuple[list[dict[str, Any]], str]  # the records of a run, and the complaint if it failed


@dataclass(frozen=True)
class Asked:
    """A run: a point of the grid, of a repeat from 0, in a new folder."""

    point: Point
    repeat: int
    folder: Path

    def overrides(self, arguments: Namespace) -> list[str]:
        return [*arguments.set, *self.point.overrides]


@dataclass(frozen=True)
class Way:
    """A way to train: ``train`` is given up to ``at_once`` runs."""

    train: Callable[[Sequence[Asked]], list[Found]]
    at_once: int = 1


def really(arguments: Namespace) -> Way:
    """Return the way under mpirun: one run at a time, which has the machine to itself."""
    start = mpirun.launcher(arguments.mpirun)

    def train(runs: Sequence[Asked]) -> list[Found]:
        return [
            sweep.train(start, run.point.n_ranks, run.point.config, run.overrides(arguments), run.folder)
            for run in runs
        ]

    return Way(train)


def virtually(arguments: Namespace) -> Way:
    """Return the way on virtual ranks: as many runs at a time as there are cores. A repeated one has another seed."""
    import mpi4py

    mpi4py.rc.initialize = False  # virtual ranks need no MPI, only its names
    from psframe.virtual import apart, asked

    request = asked.Simulations(arguments, sweep.counts(arguments.ranks))

    def simulation(run: Asked) -> asked.Simulation | UserError:
        overrides = [*run.overrides(arguments), f"record.dir={run.folder}"]
        try:
            return request.simulation(run.point.config, overrides, run.point.n_ranks, run.repeat)
        except UserError as error:
            return error

    def train(runs: Sequence[Asked]) -> list[Found]:
        simulations = [simulation(run) for run in runs]
        bodies = [partial(asked.records, one) for one in simulations if not isinstance(one, UserError)]
        answers = iter(apart.apart(bodies))
        found: list[dict[str, Any]] = [
            {"error": str(one)} if isinstance(one, UserError) else next(answers) for one in simulations
        ]
        return [(answer.get("records", []), answer.get("error", "")) for answer in found]

    return Way(train, apart.n_cores())
