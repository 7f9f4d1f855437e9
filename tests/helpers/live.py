"""Runs that are watched, and disturbed, while they train."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from psframe.cluster.flight import KEEPER
from tests.helpers.launcher import ROOT


def left_in_shm(seconds=30):
    """Return the files of jobs in /dev/shm that stay there; tests beside this one make some for a moment."""
    until = time.monotonic() + seconds
    left = {name for name in os.listdir("/dev/shm") if "psframe" in name}
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left.intersection_update(os.listdir("/dev/shm"))
    return left


def start(mpi, n, path, *overrides):
    """Start a long run; return the launcher's process, and the ranks' when they train."""
    process = launch(mpi.command(n, ["-m", "psframe.train", path, "--quiet", *overrides]))
    trains(process, path)
    return process, ranks_of(path)


def signalled(pids, sign):
    """Send a signal to processes, of which some may have ended, as others have heeded it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def catches(pid, number):
    """Return whether a process has a handler for a signal."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def heed():
    """Heed Ctrl-C: a shell may have started the tests in the background, where all that is started ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def launch(command, stderr=subprocess.PIPE, **env):
    """Start a command whose ranks heed Ctrl-C."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env={**os.environ, **env},
        preexec_fn=heed,
    )


def trains(process, path):
    """Wait until a run of the config at ``path`` has trained an epoch; ``process`` is its launcher, or None."""
    runs = Path(path).parent / "runs"
    until = time.monotonic() + 300
    while not any("\n" in file.read_text() for file in runs.glob("*/metrics.jsonl")):
        assert time.monotonic() < until, "the run does not begin"
        assert not process or process.poll() is None, process.communicate()
        time.sleep(0.05)


def ranks_of(path):
    """Return the PIDs of those that train by a config, by rank where the launcher tells it."""
    return [process.pid for process in processes_of(path)]


def processes_of(path):
    """Return the processes that train by a config, as ``ranks_of`` does."""
    ranks = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            environ = process.environ()
            rank = environ.get("PMI_RANK", environ.get("OMPI_COMM_WORLD_RANK"))
            if rank is not None and path in process.cmdline() and is_rank(process):
                ranks[int(rank)] = process
    return [ranks[rank] for rank in sorted(ranks)]


def is_rank(process):
    """Return whether a process is a rank; a child of one looks like it from fork to exec, and soon ends.

    The keeper of a node is a child of its first rank, and none itself.
    """
    try:
        words, parent = process.cmdline(), process.parent()
        by_python = bool(words) and os.path.basename(words[0]).startswith("python")
        return by_python and not (parent and parent.cmdline() == words) and not any(KEEPER in word for word in words)
    except psutil.Error:
        return False


def runs(process, module):
    """Return whether a process runs a module; one that has just ended does not."""
    try:
        return module in process.cmdline()
    except psutil.Error:
        return False


def says(process, words, seconds=120):
    """Return the next line of a job's stderr that begins with ``words``; where none comes in time, kill the job."""
    alarm = threading.Timer(seconds, process.kill)
    alarm.start()
    try:
        return next((line for line in process.stderr if line.startswith(words)), "")
    finally:
        alarm.cancel()


def lines_of(run, file="metrics.jsonl"):
    """Return what the lines of a run's file hold; the last one may just be written."""
    return [json.loads(line) for line in (run / file).read_text().splitlines(keepends=True) if line.endswith("\n")]


def records_of(tmp_path, file="metrics.jsonl"):
    """Return the lines of the one run in ``tmp_path / "runs"``."""
    (run,) = (tmp_path / "runs").iterdir()
    return lines_of(run, file)


def samples_of(tmp_path):
    """Return how many samples were trained in each epoch of the one run in ``tmp_path / "runs"``, by its steps."""
    found = Counter()
    for step in records_of(tmp_path, "steps.jsonl"):
        found[step["epoch"]] += step["n_samples"]
    return found


def placed_of(tmp_path):
    """Return the records of the one run in ``tmp_path / "runs"``, and where its roles lay."""
    (run,) = (tmp_path / "runs").iterdir()
    return lines_of(run), json.loads((run / "placement.json").read_text())


def ends(process, path, seconds=300):
    """Wait until a launcher and its ranks have ended; return what they said on stderr."""
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("the job hangs") from None
    until = time.monotonic() + 60
    while ranks_of(path):
        assert time.monotonic() < until, "ranks stay behind"
        time.sleep(0.05)
    return err
