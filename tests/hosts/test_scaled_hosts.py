"""Ranks of another host join a running job, and leave it: the same bits, and the host is not called again."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests import hosts
from tests.helpers import launcher, live, runs
from tests.helpers.live import records_of

BLOCKS = ("train.reproducible=any_workers", "train.global_batch=24")


@pytest.fixture
def two():
    if reason := hosts.missing():
        pytest.skip(reason)
    with hosts.Hosts(2) as made:
        yield made


def ended_over(two, command):
    """Run a launcher on the first host, and wait for its end."""
    env = {**os.environ, **two.environment}
    return subprocess.run(
        two.on_first(command), env=env, capture_output=True, text=True, timeout=120, cwd=launcher.ROOT
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("each", "sync", "schedule"),
    [
        ((2, 2), "{mode: sync_ps}", "10:4,40:2,70:3,110:4"),
        ((1, 3), "{mode: allreduce}", "10:3,40:1,70:4"),
    ],
)
def test_host_that_joins_and_leaves_changes_no_bit(mpi, two, tmp_path, each, sync, schedule):
    keys = (*BLOCKS, f"sync={sync}", "fault.late_s=0")
    (tmp_path / "still").mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 2)
    assert launcher.train(mpi, 2, path, "--quiet", *keys).status == 0
    path = runs.write(tmp_path / "run.yaml", 2)
    words = ["-m", "tests.helpers.scaling", schedule, path, "--quiet", f"elastic.ranks={each[0]}", *keys]
    ended = ended_over(two, two.mpi(mpi, each).command(sum(each), words))
    assert ended.returncode == 0, ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [(answer["now"], answer["error"]) for answer in answers] == [
        (int(part.split(":")[1]), "") for part in schedule.split(",")
    ]
    assert runs.hashes_of(tmp_path) == runs.hashes_of(tmp_path / "still")


@pytest.mark.full
@pytest.mark.parametrize(
    ("each", "collective", "schedule"),
    [
        ((2, 2), "hierarchical", "50:kill-0,110:2"),
        ((1, 3), "hierarchical", "50:kill-0,80:kill-2"),
        ((2, 2), "buffer", "50:kill-0,110:2,150:3"),
    ],
)
def test_ranks_of_several_hosts_go_on_without_rank_0(ulfm, two, tmp_path, each, collective, schedule):
    """By the next rank of its host, or by one of another host, where each host has the state."""
    keys = (*BLOCKS, "fault.late_s=0")
    (tmp_path / "still").mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 2)
    assert launcher.train(ulfm, 2, path, "--quiet", *keys).status == 0
    path = runs.write(tmp_path / "run.yaml", 2, "continue")
    words = ["-m", "tests.helpers.scaling", schedule, path, "--quiet", "elastic.ranks=4", f"collective={collective}"]
    ended = ended_over(two, two.mpi(ulfm, each).command(4, [*words, *keys]))
    assert ended.returncode == 0, ended.stderr
    assert runs.hashes_of(tmp_path) == runs.hashes_of(tmp_path / "still")


@pytest.mark.full
@pytest.mark.parametrize("mode", ["local_sgd", "hybrid"])
def test_modes_that_cannot_pause_inside_an_epoch_change_at_its_end(mpich, two, tmp_path, mode):
    path = runs.write(tmp_path / "run.yaml", 5)
    words = ["-m", "tests.helpers.scaling", "3:4,90:3", path, "--quiet", "elastic.ranks=2", f"sync.mode={mode}"]
    ended = ended_over(two, two.mpi(mpich, 2).command(4, [*words, "fault.late_s=0"]))
    assert ended.returncode == 0, ended.stderr
    records = records_of(tmp_path)
    assert [record["n_ranks"] for record in records][-1] == 3
    assert [len(record.get("resized", [])) for record in records].count(1) == 2


def test_host_that_is_drained_does_not_come_back(mpich, two, tmp_path):
    path = runs.write(tmp_path / "run.yaml", 4000, steps=False)
    words = ["-m", "psframe.train", path, "--quiet", "elastic.ranks=4", "fault.late_s=0"]
    process = live.launch(two.on_first(two.mpi(mpich, 2).command(4, words)), **two.environment)
    live.trains(process, path)
    (run,) = (tmp_path / "runs").iterdir()
    scale = [sys.executable, "-m", "psframe", "scale", str(run)]
    ended = subprocess.run([*scale, "--drain", two.names[1]], capture_output=True, text=True, timeout=100)
    assert ended.stdout.startswith("2 ranks train, 4 did before"), ended
    ended = subprocess.run([*scale, "--to", "3"], capture_output=True, text=True, timeout=100)
    assert "--to must be at most the ranks of the job that are not drained, 2, got 3" in ended.stderr
    os.kill(live.ranks_of(path)[0], signal.SIGUSR1)
    live.ends(process, path)
    assert records_of(tmp_path)[-1]["n_nodes"] == 1
