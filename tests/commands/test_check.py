"""The command ``psframe check`` as a process, in which MPI cannot be imported."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.launcher import ROOT

USES_MPI = """\
from mpi4py import MPI

class Mine:
    kind: MPI.Comm | None = None

    def __init__(self, team, size, allocator, reproducible):
        self.op, self.team = MPI.SUM, team

    broadcast = gather_mean = allreduce_mean = None
"""


@pytest.fixture
def check(tmp_path, config):
    """Run the command where mpi4py cannot be imported, with a config unless the words name another."""
    (tmp_path / "mpi4py.py").write_text('raise SystemExit("mpi4py was imported")\n')

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "psframe", "check", *map(str, words)],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        )  # fmt: skip

    return run


@pytest.mark.full
def test_ranks_at_first_are_some_of_the_job(check, config):
    assert check(config, "elastic.ranks=3", "-n", "4").returncode == 0
    ended = check(config, "elastic.ranks=3", "-n", "2")
    assert ended.returncode == 2
    assert "elastic.ranks must be at most the ranks of the job, 2, got 3" in ended.stderr


def test_verdict_is_a_line_and_what_is_left(check, config):
    ended = check(config, "-n", 4, "sync={mode: allreduce, server: colocated}")
    assert ended.returncode == 0, ended.stderr
    verdict, unused, left = ended.stdout.splitlines()
    assert verdict.startswith(f"{config} is sound: tests.helpers.tiny:build (")
    assert verdict.endswith(" on synthetic (60 training and 12 test samples), allreduce over shared, 4 workers")
    assert unused == "# not used by this choice: sync.server"
    assert left.startswith("# only ranks can tell: MPI, memory and where it lies")


def test_mistake_is_told_in_one_sentence(check, config):
    ended = check(config, "train.epochs=0", "--json")
    assert ended.returncode == 2
    found = json.loads(ended.stdout)
    assert not found["sound"]
    assert ended.stderr == f"psframe: {found['mistake']}\n"
    assert found["mistake"].startswith("train.epochs must be a whole number >= 1, got 0")


def test_word_of_training_is_told(check, config):
    ended = check(config, "tuned=auto")
    assert ended.returncode == 2
    assert ended.stderr.startswith("psframe: tuned=auto is for psframe train, run and fit"), ended.stderr


def test_json_has_the_facts(check, config):
    found = json.loads(check(config, "--json", "-n", 3, "sync.servers=2").stdout)
    assert found["sound"]
    assert (found["n_workers"], found["n_servers"], found["collective"]) == (1, 2, "buffer")
    assert (found["shape"], found["n_classes"]) == ([1, 6, 6], 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "it names no config"),
        (["config.yaml", "-n", "2,4"], "-n must be a number of ranks, got '2,4'"),
        (["/no/such.yaml"], "a config must be a readable file, got '/no/such.yaml'"),
    ],
)
def test_command_line_is_checked(check, words, said):
    ended = check(*words)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert said in ended.stderr


@pytest.mark.full
def test_own_strategy_may_import_mpi_but_not_use_it_yet(check, config, tmp_path):
    (tmp_path / "uses_mpi.py").write_text(USES_MPI)
    keys = ["collective=uses_mpi:Mine", "train.reproducible=none"]
    assert check(config, *keys).returncode == 0
    (tmp_path / "uses_mpi.py").write_text(USES_MPI + "RANK = MPI.COMM_WORLD.rank\n")
    ended = check(config, *keys)
    assert ended.returncode == 2
    assert "must not use MPI before there are ranks, got MPI.COMM_WORLD.rank" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_schema_is_printed_as_json(check):
    found = json.loads(check("--schema").stdout)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["properties"]["train"]["properties"]["epochs"]["default"] == 5
