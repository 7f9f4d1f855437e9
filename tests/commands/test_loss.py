"""A worker dies, and the others go on: real ranks are killed, at random moments, under Open MPI with ULFM."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.helpers import launcher, runs
from tests.helpers.live import ends, launch, left_in_shm, ranks_of, records_of, samples_of, trains
from tests.helpers.seeds import seeded
from tests.helpers.thinned import thinned

FAULTY = """\
from mpi4py import MPI
from psframe.optim import SGD


class Faulty(SGD):
    def rule(self, lr, step):
        return super().rule(lr / (1 - (step == 100 and MPI.COMM_WORLD.rank == {rank})), step)
"""
BROKEN = """\
import os, signal
import numpy as np
from mpi4py import MPI
from psframe.cluster import communicators

comm, part = communicators.keep(MPI.COMM_WORLD.Dup()), np.full((3, 2), -1.0, np.float32)
comm.allgather(comm.rank)  # whose message may still lie where the next one is expected
comm.Barrier()
if comm.rank == 2:
    if {objects}:  # dies behind the first of the two calls of mpi4py's allgather, which counts bytes
        comm.Allgather(np.array([19]), np.empty(3, np.int64))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    got = comm.allgather("rank") if {objects} else comm.Allgatherv(MPI.IN_PLACE, [part, [2] * 3, MPI.FLOAT])
    print("has", got, part.tolist(), flush=True)
except MPI.Exception as lost:
    print("lost", communicators.is_loss(lost), flush=True)
communicators.revoke()
os._exit(0)
"""
#: of all modes that go on, in the forms that differ in code: the mode, and what else of the config is another
MODES = (
    ("{mode: sync_ps}", ()),
    ("{mode: sync_ps, server: colocated}", ()),
    ("{mode: allreduce}", ()),
    ("{mode: async_ps}", ()),
    ("{mode: async_ps, staleness: 2}", ()),
    ("{mode: easgd, period: 4}", ()),
    ("{mode: easgd, period: 4, synchronous: true}", ()),
    ("{mode: hogwild}", ()),
    ("{mode: local_sgd, every: 3}", ()),
    ("{mode: sync_ps, backup_workers: 1}", ()),
    ("{mode: sync_ps}", ("collective=buffer",)),
    ("{mode: allreduce}", ("collective={name: buffer, bucket_bytes: 256}",)),
    ("{mode: allreduce}", ("collective=object",)),
    ("{mode: local_sgd, every: 3}", ("collective=buffer",)),
    ("{mode: allreduce}", ("average=ema",)),
    ("{mode: sync_ps, balance: speed}", ()),
)


def begin(mpi, n, tmp_path, *overrides, epochs=80):
    path = runs.write(tmp_path / "loss.yaml", epochs, "continue")
    process = launch(mpi.command(n, ["-m", "psframe.train", path, "--quiet", *overrides]))
    trains(process, path)
    return process, path


#: of modes in which rank 0 alone has the state
NEEDS_RANK_0 = ("async_ps", "period: 4}", "hogwild", "backup")
#: a step without all; tests/commands/test_scale.py and test_succession.py kill ranks in the synchronous modes
FEW = (("{mode: sync_ps, backup_workers: 1}", ()),)
KEPT = [MODES.index(each) for each in FEW]


@pytest.mark.parametrize(
    ("sync", "overrides"), thinned(MODES, KEPT), ids=[" ".join((sync, *more)) for sync, more in MODES]
)
def test_survivors_go_on_and_see_every_sample_once_an_epoch(ulfm, tmp_path, sync, overrides):
    draw, outlives_rank_0 = seeded("moment and victim"), not any(word in sync for word in NEEDS_RANK_0)
    epochs = 16 if overrides else 80  # longer than the moment below; fewer where MPI waits by spinning
    process, path = begin(ulfm, 4, tmp_path, f"sync={sync}", *overrides, epochs=epochs)
    pids = ranks_of(path)
    time.sleep(draw.random() / 4)
    os.kill(pids[draw.choice((0, 0, 1, 2, 3) if outlives_rank_0 else (1, 2, 3))], signal.SIGKILL)
    err = ends(process, path)
    assert process.returncode == 0, err
    (line,) = (line for line in err.splitlines() if line.startswith("psframe:"))
    records = records_of(tmp_path)
    assert [record["epoch"] for record in records] == list(range(1, epochs + 1))
    lost = [loss for record in records for loss in record["lost"]]
    if "has died after the last epoch" in line:  # it is in no record
        assert not lost
        return
    assert "has died in epoch" in line
    assert [len(loss["ranks"]) for loss in lost] == [1]
    assert lost[0]["pause_s"] > 0
    assert [record["n_ranks"] for record in records][-1] == 3
    seen = samples_of(tmp_path)
    unharmed = [record["epoch"] for record in records if not record["lost"]]
    assert len(unharmed) == epochs - 1
    if "backup" not in sync:
        assert all(seen[epoch] == 2400 for epoch in unharmed)
    assert records[-1]["loss"] < records[0]["loss"]
    assert not left_in_shm()


@pytest.mark.full
def test_ranks_may_die_in_turn_until_one_is_alone(ulfm, tmp_path):
    """Each when those that are left train again: Open MPI 5.0.11 may crash where one dies while others make a job."""
    draw = seeded("order and pauses")
    mode = "sync.mode=" + draw.choice(("allreduce", "sync_ps"))
    process, path = begin(ulfm, 5, tmp_path, mode, epochs=100_000)
    pids = ranks_of(path)
    *victims, last = draw.sample(range(5), 5)
    for left, rank in zip((4, 3, 2, 1), victims, strict=True):
        os.kill(pids[rank], signal.SIGKILL)
        while records_of(tmp_path)[-1]["n_ranks"] != left:
            assert process.poll() is None, ends(process, path)
            time.sleep(0.05)
        time.sleep(draw.random() / 2)
    os.kill(pids[last], signal.SIGTERM)
    err = ends(process, path)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "left on SIGTERM" in err
    lost = [rank for record in records_of(tmp_path) for loss in record["lost"] for rank in loss["ranks"]]
    assert lost == victims  # by their numbers at the start
    assert all(f"rank {rank} has died" in err for rank in victims)


@pytest.mark.parametrize("objects", [True, False])
def test_allgather_without_a_rank_that_died_is_an_error_on_all_ranks(ulfm, tmp_path, objects):
    """Open MPI 5.0 lets it succeed on ranks other than 0, with gaps."""
    (tmp_path / "broken.py").write_text(BROKEN.format(objects=objects))
    ended = launcher.run(ulfm, 3, [tmp_path / "broken.py"])
    assert sorted(line for line in ended.out.splitlines() if line) == ["lost True"] * 2, ended


@pytest.mark.full
def test_server_of_ranks_at_their_own_pace_ends_the_job_in_one_sentence(ulfm, tmp_path):
    process, path = begin(ulfm, 4, tmp_path, "sync.mode=async_ps")
    os.kill(ranks_of(path)[0], signal.SIGKILL)
    err = ends(process, path)
    assert process.returncode != 0
    (line,) = (line for line in err.splitlines() if line.startswith("psframe:"))
    assert "rank 0 has died" in line
    assert "checkpoint.resume=auto" in line
    assert not left_in_shm()


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 2])
def test_exception_ends_the_job_where_survivors_could_go_on(ulfm, tmp_path, rank):
    (tmp_path / "faulty.py").write_text(FAULTY.format(rank=rank))
    path = runs.write(tmp_path / "loss.yaml", 80, "continue")
    command = ulfm.command(4, ["-m", "psframe.train", path, "--quiet", "sync={mode: local_sgd, every: 3}"])
    process = launch([*command, "optimizer=faulty:Faulty"], PYTHONPATH=str(tmp_path))
    err = ends(process, path)
    assert process.returncode not in (0, None)
    assert f"rank {rank}: ZeroDivisionError" in err
    assert not left_in_shm()


@pytest.mark.parametrize("mode", thinned(["dogwild", "hybrid"], (0,)))
def test_modes_that_need_every_rank_are_refused_at_the_start(ulfm, tmp_path, config, mode):
    ended = launcher.train(ulfm, 4, config, f"sync.mode={mode}", "fault.on_worker_loss=continue")
    assert ended.status == 2
    assert "must have a sync.mode that can do without a rank" in ended.err


def test_mpi_that_cannot_outlive_a_rank_is_refused_at_the_start(mpi, config):
    ended = launcher.train(mpi, 3, config, "fault.on_worker_loss=continue")
    assert ended.status == 2
    assert ended.err.count("psframe:") == 1
    assert "--with-ft ulfm" in ended.err


@pytest.mark.full
def test_supervisor_starts_the_job_again_with_other_ranks(mpi, tmp_path):
    path = runs.write(tmp_path / "loss.yaml", 60)
    command = [mpi.python, "-m", "psframe.run", "-n", "4,3", "--restarts", "2", "--quiet", path]
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags]
    process = launch([*command, "checkpoint.every_seconds=0.1"], PSFRAME_MPIRUN=" ".join(mpirun))
    trains(process, path)
    (run,) = (tmp_path / "runs").iterdir()
    latest = run / "checkpoints" / "latest"
    while not latest.exists() or latest.read_text() < "epoch-00001":
        time.sleep(0.01)
    os.kill(ranks_of(path)[0], signal.SIGKILL)
    err = ends(process, path)
    assert process.returncode == 0, err
    assert "start 2 of 3, from its last checkpoint, 3 ranks" in err
    records = records_of(tmp_path)
    assert [record["epoch"] for record in records] == list(range(1, 61))
    assert {record["n_ranks"] for record in records} == {4, 3}


def test_supervisor_asks_of_a_launcher_what_it_can(mpi, tmp_path):
    path = runs.write(tmp_path / "loss.yaml", 1, "continue")
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags]
    process = launch([mpi.python, "-m", "psframe.run", "-n", "2", "--quiet", path], PSFRAME_MPIRUN=" ".join(mpirun))
    err = ends(process, path)
    assert process.returncode == (0 if mpi.name == "openmpi" else 2), err
    assert err.count("psframe:") == (mpi.name == "mpich")


@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM], (1,)))
def test_supervisor_lets_the_ranks_leave_on_a_signal(mpi, tmp_path, number):
    path = runs.write(tmp_path / "loss.yaml", 1000)
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags]
    command = [mpi.python, "-m", "psframe.run", "-n", "3", "--quiet", path]
    process = launch(command, PSFRAME_MPIRUN=" ".join(mpirun))
    trains(process, path)
    process.send_signal(number)
    err = ends(process, path)
    assert process.returncode == 128 + number
    assert "left on SIGUSR1 after" in err
    assert not left_in_shm()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["-n", "0", "c.yaml"], "-n must be numbers of ranks"),
        (["-n", "2", "missing.yaml"], "a config must be a readable file"),
        (["-n", "2"], "it names no config"),
        (["-n", "2", "--restarts", "-1", "c.yaml"], "--restarts must be 0 or more"),
        (["-n", "2", "--mpirun", "/nowhere/mpirun", "c.yaml"], "--mpirun must be a launcher"),
    ],
)
def test_supervisor_says_what_is_wrong_once(mpich, tmp_path, given, said):
    runs.write(tmp_path / "c.yaml", 1, "continue")
    command = [mpich.python, "-m", "psframe.run", *given]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("psframe:") == 1
    assert said in ended.stderr


def test_supervisor_takes_no_older_run_for_its_own(tmp_path):
    from psframe.config import schema
    from psframe.record import run_dir

    settings = schema.read(runs.write(tmp_path / "c.yaml", 1, "continue"))
    old = tmp_path / "runs" / "c-20200101-000000"
    old.mkdir(parents=True)
    (old / "config.yaml").write_text("name: c\n")
    assert run_dir.newest(Path(settings.record.dir), settings.name, time.time() + 1) is None
    assert run_dir.newest(Path(settings.record.dir), settings.name, time.time() - 60) == old
