"""The shared collective in whole runs: where its memory lies, what is told where it cannot be, what ends it."""

import json
import os
import signal
from pathlib import Path

import pytest

from psframe.memory.topology import read
from tests import launcher
from tests.launcher import train
from tests.live import ends, left_in_shm, ranks_of, start
from tests.test_bad_input import told

NODE = read("/").memory[0]
FAST = f"placement.hbw_nodes=[{NODE}]"


def records_of(tmp_path):
    (run,) = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return records, json.loads((run / "placement.json").read_text())


def test_parameters_are_there_once_and_every_role_lies_where_it_was_asked_for(mpi, config, tmp_path):
    keys = [f"placement.{role}=hbw" for role in ("parameters", "gradients", "optimizer")]
    ended = train(mpi, 3, config, *keys, FAST, "placement.verify=error", "optimizer.momentum=0.9")
    assert ended.status == 0, ended
    records, placed = records_of(tmp_path)
    for record in records:
        assert record["placed"]["parameters"] == 1.0
        assert record["pages"]["parameters"] == {str(NODE): 2}  # one page of numbers, old and new
        assert record["pages"]["optimizer"] == {str(NODE): 2}
        assert record["bytes_sent"] == 0
    owners = [of_rank["rank"] for of_rank in placed["ranks"] if "pages" in of_rank["roles"]["parameters"]]
    assert owners == [0]  # there is but one page to sum


def test_gradients_apart_from_what_they_are_exchanged_in_go_by_chunks(mpich, config, tmp_path):
    ended = train(mpich, 3, config, "placement.exchange=hbw", FAST, "placement.verify=error", "name=apart")
    assert ended.status == 0, ended
    assert records_of(tmp_path)[0][0]["placed"] == {"exchange": 1.0}


TOO_LITTLE = ["placement.parameters={name: default, huge_pages: 1G}", "optimizer.momentum=0.9"]


@pytest.mark.skipif(Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").exists()
                    and int(Path("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").read_text()) > 0,
                    reason="this machine has huge pages of 1 GB")  # fmt: skip
def test_too_few_huge_pages_are_told_or_the_config_goes_on_without(mpich, config, tmp_path):
    ended = train(mpich, 4, config, *TOO_LITTLE)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "huge_pages: 1G" in line or "memory must fit" in line


def test_where_a_sandbox_denies_memfds_a_file_without_a_name_serves(mpich, config):
    command = ["-m", "tests.denied", "memfd_create", str(mpich.python), "-m", "psframe.train", config]
    ended = launcher.run(mpich, 3, command)
    assert ended.status == 0, ended
    assert "over shared, 3 rank(s) on 1 node(s)" in ended.out
    assert not left_in_shm()


@pytest.fixture
def long_run(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(
        "model: tests.tiny:build\ndataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 600}\n"
        f"train: {{epochs: 100000, batch_size: 8}}\noptimizer: {{lr: 0.001}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n"
        "checkpoint: {every_epochs: 0}\nsync: {mode: allreduce, deadline_s: 2}\n"
    )
    return str(path)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_ends_the_job_and_leaves_no_file(mpi, long_run, victim):
    process, pids = start(mpi, 3, long_run)
    os.kill(pids[victim], signal.SIGKILL)
    ends(process, long_run)
    assert process.returncode != 0
    assert not left_in_shm()


def test_a_rank_that_is_stuck_is_named_after_the_deadline(mpi, long_run):
    process, pids = start(mpi, 3, long_run)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        err = ends(process, long_run)
    finally:
        for pid in set(ranks_of(long_run)).intersection(pids):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    (line,) = (line for line in err.splitlines() if "psframe:" in line)
    assert "did not come to an exchange for 2 s (sync.deadline_s)" in line
    assert not left_in_shm()


def test_ctrl_c_ends_the_job_and_leaves_no_file(mpi, long_run):
    process, _ = start(mpi, 3, long_run)
    os.kill(process.pid, signal.SIGINT)
    ends(process, long_run)
    assert not left_in_shm()
