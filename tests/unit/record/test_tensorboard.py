"""Event files hold what metrics.jsonl and steps.jsonl do, each epoch and step once, in the framing that is read."""

import json
import math
import struct
import subprocess

import numpy as np
import pytest

from psframe.record.tensorboard import FOLDER, GROUPS, Board
from tests.helpers import launcher, runs
from tests.helpers.launcher import go_back, train

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="no tensorboardX: pip install tensorboardX")


def divided(byte):
    """Return the remainder of a byte, bit by bit, as RFC 3720 defines it."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


REMAINDERS = [divided(byte) for byte in range(256)]


def crc(data):
    """Return TFRecord's masked CRC-32C."""
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ REMAINDERS[(found ^ byte) & 0xFF]
    found ^= 0xFFFFFFFF
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path):
    """Yield the events of a file."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        payload = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12]) == (crc(data[:8]),)
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (crc(payload),)
        yield event_pb2.Event.FromString(payload)
        data = data[16 + length :]


def scalars(folder):
    """Return [(step, number)] by tag, as TensorBoard has them when it has read the files in order."""
    found = {}
    for path in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        first, *others = events(path)
        assert first.file_version == "brain.Event:2"
        for event in others:
            if event.HasField("session_log"):
                assert event.session_log.status == event_pb2.SessionLog.START
                found = {tag: [p for p in points if p[0] < event.step] for tag, points in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def there(mpi):
    if subprocess.run([mpi.python, "-c", "import tensorboardX"], capture_output=True, timeout=60).returncode:
        pytest.skip(f"no tensorboardX beside {mpi.name}: bash launch/test.sh installs it")


def holds(run, epochs, steps):
    """The files of a run are its records, each once."""
    records, lines = (
        [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()] for name in ("metrics", "steps")
    )
    by_epoch, by_step = scalars(run / FOLDER), scalars(run / FOLDER / "steps")
    for group, keys in GROUPS.items():
        for key in keys:
            wanted = [(r["epoch"], pytest.approx(r[key], rel=1e-6)) for r in records if r[key] is not None]
            assert by_epoch.get(f"{group}/{key}", []) == wanted, key
    for key in ("loss", "lr"):
        assert by_step[f"step/{key}"] == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in lines], key
    assert [step for step, _ in by_epoch["quality/accuracy"]] == list(range(1, epochs + 1))
    assert [step for step, _ in by_step["step/loss"]] == list(range(1, steps + 1))


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.full), 3])
def test_event_files_are_the_records_also_of_a_continued_run(mpi, n, config, tmp_path):
    keys = ("record.tensorboard=true", "record.steps=true", "sync.mode=allreduce")
    there(mpi)
    ended = train(mpi, n, config, *keys, "train.epochs=3")
    assert ended.status == 0, ended
    (run,) = (tmp_path / "runs").iterdir()
    in_epoch = -(-60 // (8 * n))
    holds(run, 3, 3 * in_epoch)
    # cut it back to its first epoch, as a crash in the second would have left it
    go_back(run, 1)
    ended = train(mpi, n, config, *keys, "train.epochs=4", f"checkpoint.resume={run}")
    assert ended.status == 0, ended
    assert len(list((run / FOLDER).glob("events.*"))) == 2
    holds(run, 4, 4 * in_epoch)


@pytest.mark.full
def test_event_files_are_the_records_under_another_rank_0(ulfm, tmp_path):
    there(ulfm)
    keys = ("record.tensorboard=true", "train.reproducible=any_workers", "train.global_batch=24", "sync.mode=sync_ps")
    path = runs.write(tmp_path / "run.yaml", 12, "continue")
    words = ["-m", "tests.helpers.scaling", "250:kill-0,420:kill-1", path, "--quiet", "elastic.ranks=4", *keys]
    ended = launcher.run(ulfm, 4, words)
    assert ended.status == 0, ended
    (run,) = (tmp_path / "runs").iterdir()
    assert len(list((run / FOLDER).glob("events.*"))) == 3
    holds(run, 12, 12 * 100)


@pytest.mark.full
def test_epochs_are_there_alone_unless_steps_are_recorded(mpich, config, tmp_path, pool):
    there(mpich)
    assert pool(2).train(config, "record.tensorboard=true").status == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert len(scalars(run / FOLDER)["seconds/epoch_s"]) == 2
    assert not (run / FOLDER / "steps").exists()


@pytest.mark.full
def test_folder_that_cannot_be_written_is_told(mpich, config, tmp_path, pool):
    there(mpich)
    assert pool(2).train(config, "train.epochs=1").status == 0
    (run,) = (tmp_path / "runs").iterdir()
    (run / FOLDER).touch()
    ended = pool(2).train(config, "record.tensorboard=true", "train.epochs=2", f"checkpoint.resume={run}")
    assert ended.status == 2, ended
    assert ended.err.count("the run directory must stay writable") == 1
    assert "Traceback" not in ended.err


def test_numbers_of_any_kind(tmp_path):
    board = Board(tmp_path, 0, 0)
    board.epoch({"epoch": 1, "loss": np.float32(1.5), "test_loss": math.nan, "accuracy": None, "bytes_sent": 2})
    board.epoch({"epoch": 1, "metrics": {"ece": 0.5, "log_loss": None, "confusion": [[1]]}})
    board.epoch({"epoch": 2, "loss": np.float64(np.inf), "staleness_p50": np.int64(3), "n_ranks": 4})
    # no close: what was written is there, since an epoch flushes
    found = scalars(tmp_path / FOLDER)
    assert math.isnan(found.pop("quality/test_loss")[0][1])
    assert found == {
        "quality/loss": [(1, 1.5), (2, math.inf)],
        "bytes/bytes_sent": [(1, 2.0)],
        "metrics/ece": [(1, 0.5)],
        "staleness/staleness_p50": [(2, 3.0)],
    }


def test_checksum_of_this_test_is_that_of_the_standard():
    """RFC 3720, B.4: of 32 zeros, before TFRecord's mask."""
    masked = (0x8A9136AA >> 15 | 0x8A9136AA << 17) + 0xA282EAD8 & 0xFFFFFFFF
    assert crc(bytes(32)) == masked
