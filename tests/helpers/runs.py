"""Runs that last long enough to be disturbed, their launchers, and commands that start launchers themselves."""

import os
from dataclasses import replace

import pytest

from tests.helpers import launcher
from tests.helpers.forked import command
from tests.helpers.live import records_of

SAMPLES = 2400
CONFIG = """\
model: tests.helpers.tiny:build
dataset: {{name: synthetic, shape: [2, 8, 9], classes: 5, samples: {samples}}}
train: {{epochs: {epochs}, batch_size: 8, seed: 3}}
optimizer: {{name: sgd, lr: 0.01, momentum: 0.5}}
fault: {{on_worker_loss: {on_loss}, late_s: 0}}
record: {{dir: {runs}, steps: {steps}}}
"""


def write(path, epochs, on_loss="stop", steps=True):
    """Write the config of a run whose records lie beside it in ``runs``; return its path as a string."""
    keys = {"on_loss": on_loss, "steps": str(steps).lower(), "runs": path.parent / "runs"}
    path.write_text(CONFIG.format(samples=SAMPLES, epochs=epochs, **keys))
    return str(path)


def tolerant():
    """Return Open MPI such that it outlives a rank, or None if it is not installed."""
    mpi = launcher.installed("openmpi")
    return mpi and replace(mpi, flags=(*mpi.flags, "--with-ft", "ulfm"))


def ulfm():
    """Return the same, or skip the test."""
    return tolerant() or pytest.skip("no openmpi: bash launch/test.sh installs it")


def hashes_of(tmp_path):
    """Return the parameters' hash after each epoch of the one run in ``tmp_path / "runs"``."""
    return [record["params_sha256"] for record in records_of(tmp_path)]


def bench(mpi, *arguments, timeout_s=600, **env):
    """Start a benchmark that starts mpirun itself, as a user does."""
    start = " ".join(str(word) for word in (mpi.prefix / "bin" / "mpirun", *mpi.flags))
    keys = {"timeout_s": timeout_s, "env": {**os.environ, **env}, "python": mpi.python}
    return command("psframe.bench", *arguments, "--mpirun", start, **keys)
