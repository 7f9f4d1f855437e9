"""Runs many cases in one mpirun: ``mpirun -n N python -m tests.ranks.harness REPORT [NAME ...]``.

A case is a function of the world communicator in a module ``tests.ranks.case_*``, marked with the numbers of ranks it
runs at. Its outcome on all ranks is a line of the report, written before the next one starts, so that a case that hangs
is known by its missing line. Where a case fails on a rank while the others wait for it, the job ends in seconds, with
that rank's traceback in the report.
"""

import gc
import json
import sys
import time
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.helpers.cases import Case, found

LARGEST = 7  # ranks of the default suite
#: seconds that a rank waits for the others at the end of a case: one that failed, and one that did not
FAILED_S, STUCK_S = 10, 200
LOOK_S = 0.005
#: files whose cases the default suite has with Open MPI, too; nodes and servers, with MPI calls of their own, are not
#: among them, and have it with the long suites
BOTH = ("cluster", "modes", "peers", "stores")
#: files whose cases run on virtual ranks, too, at all of their numbers up to LARGEST, but for those of dead ranks
VIRTUAL = ("contract", "stores")
REAL = ("step_that_a_rank_does_not_finish_never_was", "lock_whose_holder_is_lost_is_not_waited_for_for_ever")


def ranks(*counts: int, full: bool = False, virtual: bool = False) -> Callable[[Case], Case]:
    """Mark a case with the numbers of ranks it runs at.

    ``full`` leaves it to the long suites; ``virtual`` lets the default suite run it on virtual ranks, where processes
    and their memory are not the matter, and the long ones on real ranks, too.
    """

    def mark(case: Case) -> Case:
        case.ranks, case.is_full, case.is_virtual = counts, full, virtual
        return case

    return mark


def cases() -> dict[str, Case]:
    """Return every case by name, in the order of their modules' names and lines."""
    return found(Path(__file__).parent, "tests.ranks")


def counts(mpi: str) -> dict[str, int]:
    """Return the number of ranks at which the default suite has each case with an MPI.

    All but the virtual ones with MPICH, at one of their numbers that their name draws; those of ``BOTH`` with Open MPI,
    too, at the next.
    """
    found = {}
    for name, case in cases().items():
        is_real = not (case.is_full or case.is_virtual)
        if is_real and few(case) and (mpi == "mpich" or name.partition(".")[0] in BOTH):
            found[name] = drawn(name, case, mpi != "mpich")
    return found


def virtual_counts() -> list[tuple[str, int, bool]]:
    """Return the virtual cases, their numbers of ranks, and whether the default suite has them at these.

    It has those of ``VIRTUAL``, which run on real ranks, too, at all of their numbers, and others at one.
    """
    found = []
    for name, case in cases().items():
        file, _, function = name.partition(".")
        is_both = file in VIRTUAL and function not in REAL
        if case.is_virtual or is_both:
            found += [(name, n, not case.is_full and (is_both or n == drawn(name, case))) for n in few(case)]
    return found


def few(case: Case) -> list[int]:
    """Return a case's numbers of ranks, of those that a default suite may have."""
    return sorted(count for count in case.ranks if count <= LARGEST)


def drawn(name: str, case: Case, after: int = 0) -> int:
    """Return one of a case's few numbers, which its name draws; ``after``: so many places behind it."""
    return few(case)[(crc32(name.encode()) + after) % len(few(case))]


def chosen(only: tuple[str, ...]) -> dict[str, Case]:
    """Return all cases, or those whose names begin with one of ``only``, or those that are the lines of ``@FILE``."""
    if only and only[0].startswith("@"):
        names = Path(only[0][1:]).read_text().split()
        return {name: case for name, case in cases().items() if name in names}
    return {name: case for name, case in cases().items() if name.startswith(only or "")}


def main(report: str, *only: str) -> None:
    """Run the chosen cases for so many ranks, and write a line of each."""
    if Path(report).is_dir():  # which one rank alone would find out, while the others wait
        sys.exit(f"REPORT must be a file, got the folder {report}")
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for name, case in chosen(only).items():
        if world.size not in case.ranks:
            continue
        gc.collect()
        gc.freeze()  # what cases before have imported and compiled, which each run would look through
        error, skipped, began = None, None, time.monotonic()
        try:
            case(world)
        except unittest.SkipTest as reason:
            skipped = str(reason)
        except BaseException:
            error = f"rank {world.rank}: {traceback.format_exc()}"
        line = {"case": name, "skipped": skipped, "seconds": round(time.monotonic() - began, 3)}
        if not all_come(world, FAILED_S if error else STUCK_S):
            _write(report, {**line, "errors": [error or f"rank {world.rank} waited {STUCK_S} s for the others"]})
            world.Abort(1)
        errors = world.gather(error)
        if world.rank == 0:
            _write(report, {**line, "errors": [e for e in errors if e]})


def is_virtual(world: Any) -> bool:
    """Return True for ranks that are threads of this process, of which one runs at a time (:mod:`psframe.virtual`)."""
    return hasattr(world, "site")


def all_come(world: Any, seconds: float = STUCK_S) -> bool:
    """Wait for all ranks without a core's time; return False if some have not come in time."""
    if is_virtual(world):  # whose wait takes no core, and whose scheduler sees that one does not come
        world.Barrier()
        return True
    request, until = world.Ibarrier(), time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _write(report: str, line: dict[str, Any]) -> None:
    with open(report, "a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
