"""The command as a user gives it: real mpirun processes, bad input, crashes, and what a person sees."""

import gzip
import json
import os
import pty
import signal
import subprocess
import threading
import time

import pytest

from tests import launcher
from tests.launcher import ROOT

TINY = """\
model: tests.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}
train: {epochs: 2, batch_size: 8}
optimizer: {lr: 0.05}
"""

#: a collective of a user's own, that fails in a way
BROKEN = """\
import os, time
from psframe.collectives.buffer import Buffer

class Broken(Buffer):
    calls = 0
    def broadcast(self, params):
        self.calls += 1
        if self.calls == 4:
            self.fail()
        super().broadcast(params)

class Raises(Broken):
    def fail(self):
        if self.comm.rank == self.comm.size - 1:
            raise RuntimeError("a defect")

class Dies(Broken):
    def fail(self):
        if self.comm.rank == 1:
            os.kill(os.getpid(), 9)

class Slow(Buffer):
    def broadcast(self, params):
        print("slow", flush=True)
        time.sleep(0.1)
        super().broadcast(params)
"""


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request):
    return launcher.installed(request.param) or pytest.skip(f"no {request.param}: bash launch/test.sh installs it")


@pytest.fixture
def mpich():
    return launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY + f"record: {{dir: {tmp_path / 'runs'}}}\n")
    (tmp_path / "broken.py").write_text(BROKEN)
    return str(path)


def train(mpi, n, *args, timeout_s=60, **env):
    return launcher.run(mpi, n, ["-m", "psframe.train", *args], timeout_s, **env)


def told(ended):
    """Return psframe's own lines of stderr; a launcher adds lines of its own."""
    return [line for line in ended.err.splitlines() if "psframe:" in line]


def test_a_run_as_a_person_sees_it(mpi, config, tmp_path):
    ended = train(mpi, 3, config)
    assert ended.status == 0, ended
    assert "sync_ps over buffer, 3 rank(s) on 1 node(s): a dedicated server and 2 worker(s) x batch 8" in ended.out
    assert ended.out.count("epoch 1/2:") == ended.out.count("epoch 2/2:") == 1
    assert "samples/s      loss  accuracy" in ended.out or "loss  accuracy" in ended.out
    (run,) = (tmp_path / "runs").iterdir()
    assert str(run) in ended.out
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records] == [1, 2]
    assert len({r["params_sha256"] for r in records}) == 2


def test_quiet(mpich, config):
    ended = train(mpich, 2, config, "--quiet")
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_help_is_printed_once(mpich):
    ended = train(mpich, 3, "--help")
    assert ended.status == 0
    assert ended.out.count("--dry-run") == 1


def test_without_mpirun_one_rank_trains_alone(config, mpich):
    command = [str(mpich.python), "-m", "psframe.train", config]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 0, ended
    assert "alone, 1 rank(s)" in ended.stdout


@pytest.mark.parametrize("n", [1, 3])
def test_a_dry_run_prints_the_plan_and_leaves_nothing(mpich, config, tmp_path, n):
    ended = train(mpich, n, config, "--dry-run", "sync.server=dedicated", "sync.mode=allreduce", "optimizer=adam")
    assert ended.status == 0, ended
    assert "mode: allreduce" in ended.out
    assert "# not used by this choice: sync.server" in ended.out
    assert ended.out.count("bytes by rank and role") == 1
    row = ended.out.splitlines()[-1].split()
    assert row[0] == ("0" if n == 1 else "1-2")
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_does_not_take_the_memory_it_tells_of(mpich, config):
    big = "dataset={name: synthetic, shape: [1, 6, 6], classes: 3, samples: 100000000}"
    ended = train(mpich, 2, config, "--dry-run", big)
    assert ended.status == 0, ended
    assert max(int(cell.replace(",", "")) for cell in ended.out.split() if cell.replace(",", "").isdigit()) > 10**10


def _idx(folder, labels=(0, 1, 2), cut=0, name="train"):
    for split in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (3, 6, 6))
        images = header + bytes(3 * 36)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(images[: len(images) - (cut if split == name else 0)])
        with gzip.open(folder / f"{split}-labels-idx1-ubyte.gz", "wb") as out:
            out.write(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes(labels))


BAD = {  # overrides: words of the sentence
    "unknown key": (["trian.epochs=1"], ["trian", "train"]),
    "wrong type": (["train.epochs=many"], ["train.epochs", "int", "'many'"]),
    "impossible value": (["train.batch_size=0"], ["train.batch_size", ">= 1", "0"]),
    "unknown model": (["model=lenett"], ["'lenett'", "'lenet'"]),
    "unknown dataset": (["dataset=mnist5k"], ["'mnist5k'", "'mnist_5k'"]),
    "unknown mode": (["sync.mode=allredcue"], ["'allredcue'", "'allreduce'"]),
    "unknown collective": (["collective=bufer"], ["'bufer'", "'buffer'"]),
    "missing dataset": (["dataset={name: idx, path: /no/such}"], ["/no/such", "does not exist"]),
    "truncated dataset": (["dataset={name: idx, path: {tmp}/cut}"], ["train-images-idx3-ubyte", "bytes"]),
    "label out of range": (["dataset=tests.test_commands:mislabelled"], ["labels must be 0 to 2", "got 9"]),
    "unwritable runs": (["record.dir=/dev/null/runs"], ["record.dir", "/dev/null/runs"]),
    "another model's checkpoint": (["checkpoint.resume={tmp}/other"], ["model.name", "{tmp}/other"]),
    "more workers than samples": (["dataset.limit=1", "sync.server=colocated"], ["1 samples for", "workers"]),
    "no config": (["checkpoint.resume=/no/such"], ["/no/such", "config.yaml"]),
    "a model that does not fit": (["model=har_cnn"], ["har_cnn", "(1, 6, 6)"]),
    "a layer that does not fit": (["model=cifar_quick", "dataset.shape=[1, 1, 1]"], ["(H, W)"]),
    "own model missing": (["model=no_such_module:build"], ["no_such_module"]),
    "usage": (["--frobnicate"], ["--frobnicate", "CONFIG"]),
}


def mislabelled():
    """A user's own dataset, with a label that no class has."""
    import numpy as np

    from psframe.datasets.base import Dataset, held

    split = held(np.zeros((60, 1, 6, 6), np.float32), np.array([0, 1, 9] * 20))
    return Dataset((1, 6, 6), "float32", 3, split, split)


def other_run(tmp_path):
    """A run of another model, to resume from."""
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "config.yaml").write_text("name: tiny\nmodel: {name: lenet}\n")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_once_and_every_rank_exits_2(case, config, mpich, tmp_path):
    for name in ("cut", "labels"):
        (tmp_path / name).mkdir()
    _idx(tmp_path / "cut", cut=10)
    other_run(tmp_path)
    overrides, words = BAD[case]
    began = time.monotonic()
    ended = train(mpich, 8, config, *(o.replace("{tmp}", str(tmp_path)) for o in overrides))
    seconds = time.monotonic() - began
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert all(word.replace("{tmp}", str(tmp_path)) in line for word in words), line
    assert "Traceback" not in ended.err
    assert seconds < 30, "far beyond the 5 seconds it takes on a machine that is not busy"
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir()), "an empty run stays behind"


@pytest.mark.parametrize("case", ["unknown key", "truncated dataset"])
def test_bad_input_with_open_mpi(case, config, tmp_path):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    (tmp_path / "cut").mkdir()
    _idx(tmp_path / "cut", cut=10)
    ended = train(openmpi, 3, config, *(o.replace("{tmp}", str(tmp_path)) for o in BAD[case][0]))
    assert ended.status == 2, ended
    assert len(told(ended)) == 1


def test_an_uncaught_exception_names_the_rank_and_ends_the_job(mpi, config, tmp_path):
    ended = train(mpi, 4, config, "collective=broken:Raises", PYTHONPATH=str(tmp_path))
    assert not ended.timed_out
    assert ended.status not in (0, 2)
    assert "rank 3: RuntimeError: a defect" in ended.err
    assert "rank 3: Traceback" in ended.err
    assert "rank 0: Traceback" not in ended.err


def test_a_killed_rank_ends_the_job(mpi, config, tmp_path):
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
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    while "slow" not in process.stdout.readline():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    watchdog.cancel()
    assert process.returncode not in (0, -9), (out, err)
    assert "Traceback" not in err


def test_the_progress_bar_is_shown_where_mpirun_has_a_terminal(mpich, config):
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
