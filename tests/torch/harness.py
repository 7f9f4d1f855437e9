"""Runs many cases of a backend of ``torch.distributed`` in one torchrun:

    torchrun --standalone --nproc-per-node N -m tests.torch.harness REPORT BACKEND SEED [CASE ...]

A case is a function of a ``Team`` (``tests/torch/team.py``) in a module ``tests.torch.case_*``, marked with the numbers
of ranks it runs at. CASE is what its name begins with, ``NAME@K`` its example K alone, ``@FILE`` a file with a name a
line. Its outcome on all ranks is a line of the report, written before the next one starts. What a case expects and does
not find is noted, and the case goes on, so that all ranks take the same way. An exception ends the job, since ranks may
then be at different places: with its traceback in the report, and no rank left that waits for another.
"""

import faulthandler
import importlib
import json
import os
import sys
import threading
import time
import traceback
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.cases import Case, found

LARGEST = 5  # ranks of the default suite
#: seconds that a rank waits for the others at the end of a case: one that failed, and one that did not
FAILED_S, STUCK_S = 10, 600
MOST_ERRORS = 8  # of a rank and a case that are reported


def ranks(*counts: int, full: bool = False, alone: bool = False, own: bool = False) -> Callable[[Case], Case]:
    """Mark a case with the numbers of ranks it runs at.

    ``full`` leaves it to the long suites, ``alone`` gives it a job of its own, ``own`` promises what only psframe does.
    """

    def mark(case: Case) -> Case:
        case.ranks, case.is_full, case.is_alone, case.is_own = counts, full, alone, own
        return case

    return mark


def cases() -> dict[str, Case]:
    """Return every case by name, in the order of their modules' names and lines."""
    return found(Path(__file__).parent, "tests.torch")


def chosen(only: tuple[str, ...]) -> dict[str, tuple[Case, int | None]]:
    """Return the cases that are asked for, with the number of the one example, if one is."""
    every = cases()
    if only and only[0].startswith("@"):
        return {name: (every[name], None) for name in Path(only[0][1:]).read_text().split()}
    if not only:
        return {name: (case, None) for name, case in every.items()}
    found = {}
    for one in only:
        start, _, example = one.partition("@")
        at = int(example) if example else None
        found |= {name: (case, at) for name, case in every.items() if name.startswith(start)}
    return found


def main(report: str, backend: str, seed: str, *only: str) -> None:
    """Run the chosen cases for so many ranks, and write a line of each."""
    import torch.distributed as dist

    from tests.torch.meeting import Meeting
    from tests.torch.team import Team

    faulthandler.enable()
    if backend == "psframe":
        importlib.import_module("psframe.torch")
    meeting = Meeting()
    if layout := os.environ.get("PSFRAME_TEST_NODES"):  # this rank's kernel is that of its node's ranks alone
        nodes = importlib.import_module("psframe.torch.nodes")
        nodes.BOOT = types.SimpleNamespace(read_text=lambda: layout.split(",")[meeting.rank])
    dist.init_process_group(backend)
    team = Team(backend, int(seed))
    for name, (case, example) in chosen(only).items():
        if meeting.size not in case.ranks:
            continue
        team.start(name, example)
        raised = _run(report, name, case, team, meeting)
        if raised:  # where the others are is not known, and the group may be of no more use
            time.sleep(1)
            os._exit(1)
    dist.destroy_process_group()


def _run(report: str, name: str, case: Case, team: Any, meeting: Any) -> bool:
    """Run a case, write its line, and return whether a rank raised an exception."""
    error, skipped, began = None, None, time.monotonic()
    late = threading.Timer(STUCK_S, _stuck, (report, name, team))
    late.daemon = True
    late.start()
    faulthandler.dump_traceback_later(STUCK_S + FAILED_S, exit=True)  # a thread that keeps the interpreter's lock
    try:
        if case.is_own and not team.is_own:
            raise unittest.SkipTest("promised by psframe alone")
        case(team)
    except unittest.SkipTest as reason:
        skipped = str(reason)
    except BaseException as raised:
        error = f"rank {meeting.rank}, {team.at}: {type(raised).__name__}: {raised}\n{traceback.format_exc()}"
    mine = {"errors": [*team.errors[:MOST_ERRORS], *([error] if error else [])], "raised": bool(error)}
    all_of = meeting.gather({**mine, "same": team.same}, FAILED_S if error else STUCK_S)
    line = {"case": name, "skipped": skipped, "seconds": round(time.monotonic() - began, 3)}
    late.cancel()
    faulthandler.cancel_dump_traceback_later()
    if all_of is None:  # the others are stuck
        _write(report, {**line, "errors": mine["errors"] or [f"rank {meeting.rank} waited {STUCK_S} s for the others"]})
        return True
    errors = [text for each in all_of for text in each["errors"]]
    for where in sorted({where for each in all_of for where in each["same"]}):
        if len({each["same"][where] for each in all_of if where in each["same"]}) > 1:
            errors.append(f"{where}: ranks hold different bits")
    if meeting.rank == 0:
        _write(report, {**line, "errors": errors})
    return any(each["raised"] for each in all_of)


def _stuck(report: str, name: str, team: Any) -> None:
    """End this rank with what its threads were at."""
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
    stacks = "\n".join("".join(traceback.format_stack(frame)) for frame in frames.values())
    text = f"rank {team.rank}, {team.at}: at no end after {STUCK_S} s\n{stacks}"
    _write(report, {"case": name, "skipped": None, "seconds": STUCK_S, "errors": [*team.errors[:MOST_ERRORS], text]})
    time.sleep(2)  # torchrun ends the others as soon as one goes
    os._exit(1)


def _write(report: str, line: dict[str, Any]) -> None:
    with open(report, "a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
