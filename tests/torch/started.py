"""Ranks that no launcher watches over: forked from one process (:func:`forked`), or each by itself (:func:`plain`)."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from psframe.bench.torch import reserved_port
from tests.helpers import failures
from tests.helpers.launcher import ROOT
from tests.helpers.torchrun import SETTINGS

OWN = {**SETTINGS, "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::FutureWarning"}


def job(n: int, case: str, *args: Any, late_s: float = 60) -> dict[str, Any]:
    """Return a job for :func:`forked`; ``case`` names a module and its function."""
    return {"n": n, "case": case, "args": args, "late_s": late_s}


def forked(folder: Path, *jobs: dict[str, Any], backend: str = "psframe") -> list[dict[str, Any]]:
    """Run jobs (``tests/torch/forked.py``) one after the other; return what each ended with."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.torch.forked", backend, str(folder), *map(json.dumps, jobs)]
    with _session(command) as process:
        out, err = process.communicate(timeout=60 + sum(each["late_s"] for each in jobs))
    failures.said(process.returncode, out, err)
    told = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0, err
    assert len(told) == len(jobs), err
    return told


@contextlib.contextmanager
def _session(command: Sequence[str], **env: str) -> Iterator[subprocess.Popen]:
    """Start a process that leads a session, whose processes are all ended behind the block."""
    process = subprocess.Popen(
        command,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        cwd=ROOT,
        env={**os.environ, **OWN, **env},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def plain(n: int, args: Sequence[object], **env: str) -> Iterator[list[subprocess.Popen]]:
    """Start ``n`` processes with the environment of ranks, each in a session of its own."""
    with reserved_port() as port, contextlib.ExitStack() as stack:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n), **env}
        command = [sys.executable, *map(str, args)]
        yield [stack.enter_context(_session(command, **place, RANK=str(r), LOCAL_RANK=str(r))) for r in range(n)]


def lines(err: str) -> list[str]:
    """Return lines of a rank's stderr without the number that PyTorch puts before them."""
    return [re.sub(r"^\[rank\d+\]: ?", "", line) for line in err.splitlines()]


def errors(err: str) -> list[str]:
    """Return the last line of each traceback on a rank's stderr, with all that follows it."""
    return re.findall(
        r"^\S*(?:Error|Interrupt|Exception)\b.*(?:\n(?!Traceback|\n).*)*", "\n".join(lines(err)), re.MULTILINE
    )
