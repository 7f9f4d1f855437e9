"""Starts launch/containers.sh, and looks for what it has left."""

import os
import subprocess
from pathlib import Path

from tests.helpers.launcher import ROOT
from tests.helpers.live import heed

SCRIPT = ROOT / "launch" / "containers.sh"


def environment(mpi, **more):
    path = f"{mpi.prefix / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def start(arguments, **more):
    return subprocess.Popen(
        ["bash", SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed,
        **more,
    )


def end(process, timeout_s=120):
    """Return (status, out, err); past the time-out it is told to end, and removes what it made."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=30)
        raise AssertionError(f"it did not end: {out}\n{err}") from None
    return process.returncode, out, err


def left_behind(process, temporary):
    """Return what a run has left of containers, networks and files."""
    tag = f"psframe-{process.pid}"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30).stdout
    query = ["podman", "ps", "--all", "--quiet", "--filter", f"label={tag}"]
    containers = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    files = [str(path) for path in (Path("/dev/shm", tag), *temporary.iterdir()) if path.exists()]
    return [line for line in listed.splitlines() if line.startswith(tag)] + containers.split() + files
