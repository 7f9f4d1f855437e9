"""The shared collective in whole runs: where its memory lies, what is told where it cannot be, what ends it."""

import os
import signal
from pathlib import Path

import pytest

from psframe.memory.topology import read
from tests.helpers import launcher
from tests.helpers.launcher import train
from tests.helpers.live import ends, left_in_shm, placed_of, ranks_of, start
from tests.helpers.said import told
from tests.helpers.thinned import thinned

NODE = read("/").memory[0]
FAST = f"placement.hbw_nodes=[{NODE}]"


def test_parameters_are_there_once_and_roles_lie_where_asked(mpi, config, tmp_path, pool):
    keys = [f"placement.{role}=hbw" for role in ("parameters", "gradients", "optimizer")]
    ended = pool(3, mpi).train(config, *keys, FAST, "placement.verify=error", "optimizer.momentum=0.9")
    assert ended.status == 0, ended
    records, placed = placed_of(tmp_path)
    for record in records:
        assert record["placed"]["parameters"] == 1.0
        assert record["pages"]["parameters"] == {str(NODE): 2}  # one page of numbers, old and new
        assert record["pages"]["optimizer"] == {str(NODE): 2}
        assert record["bytes_sent"] == 0
    owners = [of_rank["rank"] for of_rank in placed["ranks"] if "pages" in of_rank["roles"]["parameters"]]
    assert owners == [0]  # there is but one page to sum


def test_gradients_apart_from_exchange_memory_go_by_chunks(pool, config, tmp_path):
    ended = pool(3).train(config, "placement.exchange=hbw", FAST, "placement.verify=error", "name=apart")
    assert ended.status == 0, ended
    assert placed_of(tmp_path)[0][0]["placed"] == {"exchange": 1.0}


TOO_LITTLE = ["placement.parameters={name: default, huge_pages: 1G}", "optimizer.momentum=0.9"]


@pytest.mark.skipif(Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").exists()
                    and int(Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").read_text()) > 0,
                    reason="this machine has huge pages of 1 GB")  # fmt: skip
def test_huge_pages_that_are_too_few_are_told(mpich, config, tmp_path):
    ended = train(mpich, 4, config, *TOO_LITTLE)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "huge_pages: 1G" in line or "memory must fit" in line


@pytest.mark.full
def test_file_without_a_name_serves_where_memfds_are_denied(mpich, config):
    command = ["-m", "tests.helpers.denied", "memfd_create", str(mpich.python), "-m", "psframe.train", config]
    ended = launcher.run(mpich, 3, command)
    assert ended.status == 0, ended
    assert "over shared, 3 rank(s) on 1 node(s)" in ended.out
    assert not left_in_shm()


@pytest.fixture
def long_run(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(
        "model: tests.helpers.tiny:build\ndataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 600}\n"
        f"train: {{epochs: 100000, batch_size: 8}}\noptimizer: {{lr: 0.001}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n"
        "checkpoint: {every_epochs: 0}\nsync: {mode: allreduce}\n"
    )
    return str(path)


@pytest.mark.parametrize("victim", thinned([0, 2], (1,)))
def test_rank_that_is_killed_ends_the_job_and_leaves_no_file(mpi, long_run, victim):
    process, pids = start(mpi, 3, long_run)
    os.kill(pids[victim], signal.SIGKILL)
    ends(process, long_run)
    assert process.returncode != 0
    assert not left_in_shm()


@pytest.mark.full
def test_rank_that_is_stuck_is_named_after_the_deadline(mpi, long_run):
    process, pids = start(mpi, 3, long_run, "sync.deadline_s=5", "fault.late_s=0")
    os.kill(pids[1], signal.SIGSTOP)
    try:
        err = ends(process, long_run)
    finally:
        for pid in set(ranks_of(long_run)).intersection(pids):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    (line,) = (line for line in err.splitlines() if "psframe:" in line)
    assert "did not come to an exchange for 5 s (sync.deadline_s)" in line
    assert not left_in_shm()


def test_ctrl_c_ends_the_job_and_leaves_no_file(mpi, long_run):
    process, _ = start(mpi, 3, long_run)
    os.kill(process.pid, signal.SIGINT)
    ends(process, long_run)
    assert not left_in_shm()
