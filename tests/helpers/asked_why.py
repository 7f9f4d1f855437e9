"""Jobs that something goes wrong in (:func:`config`), and what ``psframe why`` says of it (:func:`why`)."""

import subprocess
import sys
import time

from tests.helpers import launcher

CONFIG = """\
model: {model}
dataset: tests.helpers.faulty:dataset
train: {{epochs: 4000, batch_size: 8, threads: 1, reproducible: none}}
optimizer: {{lr: 0.01}}
sync: {{mode: allreduce, deadline_s: {deadline_s}}}
fault: {{late_s: 0}}
checkpoint: {{every_epochs: 0}}
record: {{dir: {runs}}}
"""
#: models by the name of a config: one that misbehaves as PSFRAME_FAULT says, and one that trains on
MODELS = {"faulty": "tests.helpers.faulty:model", "endless": "tests.helpers.tiny:build"}


def config(tmp_path, name, deadline_s):
    """Write the config of a job of one of MODELS; return its path."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(CONFIG.format(model=MODELS[name], deadline_s=deadline_s, runs=tmp_path / "runs"))
    return str(path)


def why(tmp_path, *flags, folder=None):
    """Return what ``psframe why`` says of the run, or of the folder, as a list of lines."""
    path = folder or next((tmp_path / "runs").glob("*-*"))
    words = [sys.executable, "-m", "psframe.doctor.why", str(path), *flags]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=launcher.ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def first_cause(lines):
    return next(line for line in lines if line.startswith("1. "))


def wait_for_file(tmp_path):
    """Wait until the keeper, which outlives the job, has written."""
    until = time.monotonic() + 60
    while not list((tmp_path / "runs").glob("*/incident-1.json")):
        assert time.monotonic() < until, "no incident was written"
        time.sleep(0.05)
