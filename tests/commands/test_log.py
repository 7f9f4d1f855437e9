"""The log of real jobs: on stderr, and in the run's folder."""

import json
import subprocess

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.live import launch

CONFIG = """\
model: tests.helpers.warning_model:model
dataset: {{name: synthetic, shape: [1, 4, 4], classes: 3, samples: 60}}
train: {{epochs: 2, batch_size: 10}}
checkpoint: {{every_epochs: 1}}
fault: {{late_s: 0}}
record: {{dir: {folder}/runs}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "warns.yaml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return str(path)


def lines(tmp_path):
    (path,) = (tmp_path / "runs").glob("*/log.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_library_that_warns_on_every_rank_is_shown_once(mpi, config, tmp_path):
    ended = subprocess.run(
        mpi.command(4, ["-m", "psframe.train", config, "--quiet"]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if line.startswith("psframe: ")]
    places = "(helpers/warning_model.py, line "
    assert len(told) == 3, ended.stderr
    assert told[0].startswith(f"psframe: warning: FutureWarning: an option is old {places}")
    assert told[1].startswith(f"psframe: warning: RuntimeWarning: divided by a small number {places}")
    assert all("; on all 4 ranks" in line for line in told[:2]), told
    assert told[2].startswith("psframe: warning: some.library: a slow file; on rank 1")
    said = [line["message"] for line in lines(tmp_path)]
    assert all(said.count(line.removeprefix("psframe: warning: ")) == 1 for line in told), said
    for words in ("4 rank(s) on 1 node(s)", "epoch 1/2: ", "epoch 2/2: ", "epoch-00002-step-0000000004.h5 is durable"):
        assert sum(words in message for message in said) == 1, said


@pytest.mark.full
def test_level_reaches_the_ranks_by_way_of_the_supervisor(mpich, config, tmp_path):
    words = [mpich.python, "-m", "psframe.run", "-n", "2", "--quiet", "--log-level", "debug", config]
    process = launch(words)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    every = lines(tmp_path)
    assert {line["rank"] for line in every if line["level"] == "debug"} == {0, 1}
    assert [line["epoch"] for line in every if line["level"] == "debug" and line["rank"] == 1] == [1, 2]
    assert err.count("psframe: debug: rank 1, step ") == 2


def test_error_that_ends_a_run_is_in_its_log(mpich, config, tmp_path):
    words = ["-m", "psframe.train", config, "optimizer.lr=1e38", "--quiet"]
    ended = subprocess.run(mpich.command(2, words), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    error = lines(tmp_path)[-1]
    assert error["level"] == "error"
    assert f"psframe: {error['message']}" in ended.stderr
