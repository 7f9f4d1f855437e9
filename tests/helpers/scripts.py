"""Scripts that call ``psframe.fit``, as users write them: started alone, or by mpirun."""

import json
import os
import subprocess

from tests.helpers import failures
from tests.helpers.launcher import ROOT, Ended

#: samples of three classes that differ in the half that is dark, and a network, in the script itself
BEGIN = """\
import json, os, sys, time
import numpy as np
import psframe
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.dense import Dense

X = np.random.default_rng(0).integers(0, 255, (120, 6, 6), np.uint8)
y = np.arange(120) % 3
X[y == 1, :3] = 0
X[y == 2, 3:] = 0

def layers(input_shape, n_classes):
    return [Flatten(), Dense(6), ReLU(), Dense(n_classes)]

GIVEN = dict(model=layers, data=(X, y), test_data=(X[:50], y[:50]), ranks=3, quiet=True,
             train={"epochs": 2, "batch_size": 10}, record={"dir": RUNS})

def tell(**said):
    print(json.dumps(said), flush=True)

def hashes(run):
    return list(run.epochs["params_sha256"])
"""


def write(folder, body):
    """Write a script that begins with ``BEGIN``; return its path."""
    path = folder / "script.py"
    path.write_text(f"RUNS = {str(folder / 'runs')!r}\n{BEGIN}\n{body}")
    return path


def environment(mpi):
    """Return the environment of a script that starts ranks with an MPI."""
    launcher = " ".join([str(mpi.prefix / "bin" / "mpirun"), *mpi.flags])
    return {**os.environ, "PSFRAME_MPIRUN": launcher, "PYTHONPATH": str(ROOT)}


def run(mpi, folder, body, timeout_s=120):
    """Run a script alone; it starts its ranks itself."""
    words = [str(mpi.python), str(write(folder, body))]
    process = subprocess.run(
        words, cwd=folder, env=environment(mpi), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    failures.said(process.returncode, process.stdout, process.stderr)
    return Ended(process.returncode, process.stdout, process.stderr, False)


def told(ended):
    """Return what a script has told, a dict a line."""
    assert ended.status == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
