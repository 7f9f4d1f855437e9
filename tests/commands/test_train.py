"""The command as a user gives it: real mpirun processes, crashes, what a person sees."""

import json
import os
import pty
import signal
import subprocess
import threading

import pytest

from tests.helpers.launcher import ROOT, train


@pytest.mark.each_mpi
def test_run_as_a_person_sees_it(mpi, config, tmp_path):
    ended = train(mpi, 3, config)
    assert ended.status == 0, ended
    assert "sync_ps over shared, 3 rank(s) on 1 node(s): a dedicated server and 2 worker(s) x batch 8" in ended.out
    assert ended.out.count("epoch 1/2:") == ended.out.count("epoch 2/2:") == 1
    assert "loss  accuracy" in ended.out
    (run,) = (tmp_path / "runs").iterdir()
    assert str(run) in ended.out
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records] == [1, 2]
    assert len({r["params_sha256"] for r in records}) == 2


def test_quiet_run_prints_nothing(mpich, config):
    ended = train(mpich, 2, config, "--quiet")
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_help_is_printed_once(mpich):
    ended = train(mpich, 3, "--help")
    assert ended.status == 0
    assert ended.out.count("--dry-run") == 1


def test_rank_trains_alone_without_mpirun(config, mpich):
    command = [str(mpich.python), "-m", "psframe.train", config]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 0, ended
    assert "alone, 1 rank(s)" in ended.stdout


@pytest.mark.parametrize("n", [1, 3])
def test_dry_run_prints_the_plan_and_leaves_nothing(mpich, config, tmp_path, n):
    ended = train(mpich, n, config, "--dry-run", "sync.server=dedicated", "sync.mode=allreduce", "optimizer=adam")
    assert ended.status == 0, ended
    assert "mode: allreduce" in ended.out
    assert "# not used by this choice: sync.server" in ended.out
    assert ended.out.count("bytes by rank and role") == 1
    sizes, places = ended.out.split("bytes by rank and role")[1].split("\n\nCPUs and placement by rank\n")
    assert sizes.splitlines()[-1].split()[0] == ("0" if n == 1 else "1-2")
    assert [line.split()[0] for line in places.splitlines()] == ["rank", *map(str, range(n))]
    assert not (tmp_path / "runs").exists()


def test_dry_run_does_not_take_the_memory_it_tells_of(mpich, config):
    big = "dataset={name: synthetic, shape: [1, 6, 6], classes: 3, samples: 50000000}"
    ended = train(mpich, 2, config, "--dry-run", big)
    assert ended.status == 0, ended
    assert max(int(cell.replace(",", "")) for cell in ended.out.split() if cell.replace(",", "").isdigit()) > 5 * 10**9


def test_uncaught_exception_names_the_rank_and_ends_the_job(mpi, config, tmp_path):
    ended = train(mpi, 4, config, "collective=broken:Raises", PYTHONPATH=str(tmp_path))
    assert not ended.timed_out
    assert ended.status not in (0, 2)
    assert "rank 3: RuntimeError: a defect" in ended.err
    assert "rank 3: Traceback" in ended.err
    assert "rank 0: Traceback" not in ended.err


@pytest.mark.full
def test_traceback_of_first_rank_is_never_lost(mpich, config, tmp_path):
    """While others, who wait for it, notice its end and abort too."""
    (tmp_path / "breaks.py").write_text("def build(input_shape, n_classes):\n    raise ZeroDivisionError('a defect')\n")
    for _ in range(5):
        ended = train(mpich, 4, config, "model=breaks:build", PYTHONPATH=str(tmp_path))
        assert ended.status not in (0, 2)
        assert ended.err.count("ZeroDivisionError: a defect") == 1, ended
        assert "has ended, and with it the job" not in ended.err


def test_training_goes_on_where_nobody_listens(mpich, config, tmp_path):
    command = " ".join(
        [*map(str, mpich.command(1, ["-m", "psframe.train", config])[-4:]), "| true; echo ${PIPESTATUS[0]}"]
    )
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.stdout.strip() == "0", ended
    assert ended.stderr == ""
    (run,) = (tmp_path / "runs").iterdir()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_resume_auto_says_when_there_is_nothing_to_continue(pool, config):
    assert "there is no unfinished one" in pool(2).train(config, "checkpoint.resume=auto").out
    ended = pool(2).train(config, "checkpoint.resume=auto", "train.epochs=3")
    assert "continued after epoch 2" in ended.out
    assert "goes on with" not in ended.err
    many = pool(3).train(config, "checkpoint.resume=auto", "train.epochs=4", "parallel={micro_batches: 2}")
    assert "warning: the run goes on with" in many.err
    assert "2 micro-batches, not 1: not to the bits" in many.err


@pytest.mark.each_mpi
def test_killed_rank_ends_the_job(mpi, config, tmp_path):
    ended = train(mpi, 3, config, "collective=broken:Dies", PYTHONPATH=str(tmp_path))
    assert not ended.timed_out
    assert ended.status != 0


def test_ctrl_c_ends_the_job_without_a_traceback(mpi, config, tmp_path):
    process = subprocess.Popen(
        mpi.command(3, ["-m", "psframe.train", config, "collective=broken:Slow", "train.epochs=1000"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        start_new_session=True,
    )
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    while "slow" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    watchdog.cancel()
    assert process.returncode not in (0, -9), (out, err)
    assert "Traceback" not in err


def test_progress_bar_is_shown_where_mpirun_has_a_terminal(mpich, config):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        mpich.command(2, ["-m", "psframe.train", config]), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT
    )
    os.close(theirs)
    seen = bytearray()
    try:
        while part := os.read(ours, 1 << 16):
            seen += part
    except OSError:
        pass  # the terminal is gone with its last user
    assert process.wait(60) == 0
    assert b"epoch 1/2: " in seen
    assert b"step/s" in seen
    assert b"\r" in seen
