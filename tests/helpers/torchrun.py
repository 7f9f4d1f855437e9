"""Starts real torchrun processes under a time-out: ranks of PyTorch on this machine."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.helpers import failures
from tests.helpers.launcher import ROOT, Ended

#: each rank has one thread, as there may be more ranks than cores; gloo, for comparisons, has no network to look for
SETTINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
GOING_S = 10


def command(n: int, args: Sequence[object]) -> list[str]:
    """Return the command line of ``n`` ranks of a script, or of a module behind ``-m``."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)),
        *map(str, args),
    ]


def run(n: int, args: Sequence[object], timeout_s: float = 120, cwd: Path = ROOT, **env: str) -> Ended:
    """Run a script on ``n`` ranks and wait; past the time-out torchrun and all ranks are killed."""
    return _end(command(n, args), timeout_s, cwd, env)


def forked(n: int, args: Sequence[object], timeout_s: float = 120, **env: str) -> Ended:
    """Do the same without torchrun: ranks share their imports, where what starts them is not the matter."""
    return _end([sys.executable, "-m", "tests.helpers.torch_forked", *map(str, (n, *args))], timeout_s, ROOT, env)


def _end(command: Sequence[str], timeout_s: float, cwd: Path, env: Mapping[str, str]) -> Ended:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **SETTINGS, **env},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        out, err = _kill(process)
        failures.said(process.returncode, out, f"{err}\nended after {timeout_s} s by the test")
        return Ended(process.returncode, out, err, True)
    except BaseException:
        _kill(process)
        raise
    failures.said(process.returncode, out, err)
    return Ended(process.returncode, out, err, False)


def _kill(process: subprocess.Popen) -> tuple[str, str]:
    """End torchrun, which ends its ranks, and whatever is left: each rank is in a session of its own."""
    ranks = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GOING_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    return process.communicate()
