"""Runs many cases in one mpirun: ``mpirun -n N python -m tests.ranks.harness REPORT``.

A case is a function of the world communicator in a module ``tests.ranks.case_*``, marked with the numbers of ranks it
runs at. Its outcome on all ranks is a line of the report, written before the next one starts, so that a case that hangs
is known by its missing line.
"""

import importlib
import json
import sys
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path

Case = Callable[..., None]


def ranks(*counts: int) -> Callable[[Case], Case]:
    """Mark a case with the numbers of ranks it runs at."""

    def mark(case: Case) -> Case:
        case.ranks = counts
        return case

    return mark


def cases() -> dict[str, Case]:
    """Return every case by name, in the order of their modules' names and lines."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("case_*.py")):
        module = importlib.import_module(f"tests.ranks.{path.stem}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "ranks"):
                found[f"{path.stem.removeprefix('case_')}.{name}"] = value
    return found


def main(report: str) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for name, case in cases().items():
        if world.size not in case.ranks:
            continue
        error, skipped = None, None
        try:
            case(world)
        except unittest.SkipTest as reason:
            skipped = str(reason)
        except BaseException:
            error = f"rank {world.rank}: {traceback.format_exc()}"
        errors = world.gather(error)
        if world.rank == 0:
            with open(report, "a") as out:
                out.write(json.dumps({"case": name, "skipped": skipped, "errors": [e for e in errors if e]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
