"""Ranks that are forked from one process, which has imported PyTorch.

    python -m tests.torch.forked BACKEND FOLDER JOB ...

Each JOB is ``{"n": 3, "case": "faults.lost", "args": [...], "late_s": 60}``: a function of a module of these tests, and
what it is given, on ``n`` ranks that have the environment of any launcher and nothing that watches over them. A rank
goes on as an interpreter does: what it raises is on its stderr, and it ends as such. Ranks that are stopped when all
others have ended are killed, and all of them when ``late_s`` have passed. A line of JSON tells of each job what its
ranks ended with.
"""

import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from psframe.bench.torch import reserved_port

LOOK_S = 0.02


def main() -> tuple[str, list[Any]] | None:
    """Run the jobs; return in a rank what it is to do, and None when all have ended."""
    import torch._dynamo  # noqa: F401  (which the first model under DDP would import on every rank)

    from tests.torch import faults, lasting  # noqa: F401  (for all ranks at once)

    backend, folder, *jobs = sys.argv[1:]
    faults.backend(backend)
    gc.freeze()  # ranks do not look through what has been imported, which would copy it
    for number, words in enumerate(jobs):
        job = json.loads(words)
        own = Path(folder) / str(number)
        own.mkdir()
        os.environ |= {"FOLDER": str(own), "WORLD_SIZE": str(job["n"]), "BACKEND": backend}
        before = set(os.listdir("/dev/shm"))
        with reserved_port() as port:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks = []
            for rank in range(job["n"]):
                pid = os.fork()
                if pid == 0:
                    _become(rank, own)
                    return job["case"], job["args"]
                ranks.append(pid)
            statuses, is_late = _wait(ranks, job.get("late_s", 60))
        left = _left_processes()
        told = {
            "job": job,
            "late": is_late,
            "statuses": statuses,
            "out": [(own / f"{rank}.out").read_text() for rank in range(job["n"])],
            "err": [(own / f"{rank}.err").read_text() for rank in range(job["n"])],
            "processes": left,
            "shm": sorted(name for name in set(os.listdir("/dev/shm")) - before if "psframe" in name),
        }
        print(json.dumps(told), flush=True)
    return None


def _become(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)


def _wait(ranks: list[int], late_s: float) -> tuple[list[int], bool]:
    """Return how each rank ended, as ``subprocess`` does, and whether some had to be ended."""
    ended: dict[int, int] = {}
    until = time.monotonic() + late_s
    while len(ended) < len(ranks):
        stopped = 0
        for pid in ranks:
            if pid in ended:
                continue
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended[pid] = os.waitstatus_to_exitcode(status)
            else:
                stopped += psutil.Process(pid).status() == psutil.STATUS_STOPPED
        is_late = time.monotonic() > until
        if is_late or (stopped and stopped == len(ranks) - len(ended)):
            for pid in set(ranks) - set(ended):
                os.kill(pid, signal.SIGKILL)
                ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return [ended[pid] for pid in ranks], is_late
        time.sleep(LOOK_S)
    return [ended[pid] for pid in ranks], False


def _left_processes() -> list[str]:
    """Return what still runs of this session, which this process leads, and end it."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and os.getsid(process.pid) == os.getpid():
                left.append(" ".join(process.cmdline()))
                process.kill()
        except (psutil.Error, ProcessLookupError):
            pass
    return left


if __name__ == "__main__":
    todo = main()
    if todo is not None:
        module, _, function = todo[0].partition(".")
        getattr(importlib.import_module(f"tests.torch.{module}"), function)(*todo[1])
