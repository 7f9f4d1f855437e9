"""Ranks of a job that join and leave it while it trains: the same bits, every sample once an epoch, nothing left."""

import json
from pathlib import Path

import pytest

from tests.helpers import launcher, runs
from tests.helpers.live import left_in_shm, records_of, samples_of
from tests.helpers.seeds import seeded
from tests.helpers.thinned import thinned

N = 4
BLOCKS = ("train.reproducible=any_workers", "train.global_batch=24")
#: the mode, and what else of the config is another: stores, collectives and state of every kind
MODES = (
    ("{mode: sync_ps}", ()),
    ("{mode: sync_ps, server: colocated}", ("optimizer=adam",)),
    ("{mode: sync_ps, balance: speed}", ()),
    ("{mode: sync_ps, backup_workers: 1}", ()),
    ("{mode: allreduce}", ("collective=object", "train.precision=bf16", "fault.check_every=3")),
    ("{mode: allreduce}", ("collective=buffer", "average=ema", "record.trace=true", "record.usage=true")),
    ("{mode: async_ps}", ()),
    ("{mode: async_ps, store: window, staleness: 2}", ("checkpoint.every_seconds=0.05",)),
    ("{mode: easgd, period: 4}", ()),
    ("{mode: easgd, period: 4, synchronous: true}", ()),
    ("{mode: hogwild}", ()),
    ("{mode: dogwild}", ()),
    ("{mode: hybrid}", ()),
    ("{mode: local_sgd, every: 3}", ()),
    ("{mode: block_momentum, every: 3}", ()),
)
SOME = (5,)


def scaled(mpi, n, schedule, path, *keys, first=2):
    """Train by a schedule, of steps and ranks; return the records of the run, and the answers."""
    words = ",".join(f"{step}:{ranks}" for step, ranks in schedule)
    ended = launcher.run(
        mpi, n, ["-m", "tests.helpers.scaling", words, path, "--quiet", f"elastic.ranks={first}", *keys]
    )
    assert ended.status == 0, ended
    assert "psframe:" not in ended.err, ended
    answers = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert [answer["error"] for answer in answers] == [""] * len(schedule), ended
    assert [answer["now"] for answer in answers] == [ranks for _, ranks in schedule]
    return records_of(Path(path).parent), answers


def drawn(draw, n_steps, n, n_changes=4):
    """Return steps, and ranks from 1 to ``n`` that train from each on."""
    return [(step, draw.randint(1, n)) for step in sorted(draw.sample(range(1, n_steps), n_changes))]


@pytest.mark.parametrize(
    ("model", "mode"),
    thinned([("build", "{mode: allreduce}"), ("build", "{mode: sync_ps}"), ("meeting", "{mode: allreduce}")], (1,)),
)
def test_ranks_that_come_and_go_change_no_bit(mpi, tmp_path, model, mode):
    """Nor what the record says of losses and samples, as each rank hands over what it has counted."""
    draw = seeded("schedule")
    keys = (*BLOCKS, f"model=tests.helpers.tiny:{model}", f"sync={mode}")
    for name in ("still", "scaled"):
        (tmp_path / name).mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 2)
    assert launcher.train(mpi, 2, path, "--quiet", *keys).status == 0
    still = records_of(tmp_path / "still")
    path = runs.write(tmp_path / "scaled" / "run.yaml", 2)
    records, answers = scaled(mpi, N, drawn(draw, 190, N), path, *keys)
    for key in ("params_sha256", "loss", "test_loss", "accuracy", "samples_used"):
        assert [record[key] for record in records] == [record[key] for record in still], key
    assert [*samples_of(tmp_path / "scaled").values()] == [2400, 2400]
    changes = [change for record in records for change in record.get("resized", ())]
    assert [(change["before"], change["now"]) for change in changes] == [
        (answer["before"], answer["now"]) for answer in answers if answer["before"] != answer["now"]
    ]
    assert all(change["pause_s"] > 0 for change in changes)
    assert not left_in_shm()


@pytest.mark.parametrize(("sync", "keys"), thinned(MODES, SOME), ids=[" ".join((sync, *keys)) for sync, keys in MODES])
def test_every_mode_goes_on_with_other_ranks(mpich, tmp_path, sync, keys):
    draw = seeded("schedule")
    path = runs.write(tmp_path / "run.yaml", 6)
    needs = 3 if "backup" in sync else 1
    schedule = [(step, max(needs, ranks)) for step, ranks in drawn(draw, 250, N, 6)]
    records, _ = scaled(mpich, N, schedule, path, f"sync={sync}", *keys, first=max(needs, 2))
    assert [record["epoch"] for record in records] == list(range(1, 7))
    assert all(record["samples_used"] <= 2400 for record in records), "what one has counted is in the next one's, too"
    if "backup" not in sync:
        assert [*samples_of(tmp_path).values()] == [2400] * 6
    assert records[-1]["loss"] < records[0]["loss"]
    assert not left_in_shm()


@pytest.mark.full
@pytest.mark.parametrize("n", [7, 16])
def test_number_of_ranks_may_be_any(mpich, tmp_path, n):
    path = runs.write(tmp_path / "run.yaml", 2)
    schedule = [(10, n), (40, 1), (80, n - 1), (120, 3)]
    records, _ = scaled(mpich, n, schedule, path, *BLOCKS, "train.blocks=16", "sync=allreduce", first=1)
    assert records[-1]["n_ranks"] == 3


#: a spare that died is noticed when all are to train, with another one, and at the end alone; one that has survived
#: joins later
FOUND = (
    "17:kill-1,43:3,91:5,120:kill-4,137:3",
    "103:kill-4,115:5,143:3,151:3,157:kill-1",
    "63:1,76:kill-4,97:kill-3,127:5,136:1",
    "13:1,23:1,48:kill-1,164:1,166:kill-3",
)


@pytest.mark.parametrize("schedule", thinned(FOUND, (1,)))
def test_ranks_that_come_go_and_die_change_no_bit(ulfm, tmp_path, schedule):
    """Where others go on without a rank that died, a spare takes its place, and another member that of rank 0."""
    draw, n = seeded("schedule"), 5
    mode = draw.choice(("{mode: allreduce}", "{mode: sync_ps}", "{mode: sync_ps, server: colocated}"))
    keys = (*BLOCKS, f"sync={mode}", "collective=" + draw.choice(("shared", "buffer", "object")))
    for name in ("still", "scaled"):
        (tmp_path / name).mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 2)
    assert launcher.train(ulfm, 2, path, "--quiet", *keys).status == 0
    path = runs.write(tmp_path / "scaled" / "run.yaml", 2, "continue")
    keys = (f"elastic.ranks={draw.randint(2, n)}", *keys)
    ended = launcher.run(ulfm, n, ["-m", "tests.helpers.scaling", schedule, path, "--quiet", *keys])
    assert ended.status == 0, (keys, ended)
    assert runs.hashes_of(tmp_path / "scaled") == runs.hashes_of(tmp_path / "still"), keys
    assert not left_in_shm()


@pytest.mark.full
def test_ranks_that_have_joined_know_what_failed_before(mpich, tmp_path):
    """A step that fails again after all went back ends the job, on those too that were spares when it failed first."""
    path = runs.write(tmp_path / "run.yaml", 1)
    keys = (*BLOCKS, "sync=allreduce", "fault.on_nan=rollback", "optimizer.lr=1e4", "schedule.warmup_epochs=1")
    words = ["-m", "tests.helpers.scaling", "9:4", path, "--quiet", "elastic.ranks=2", *keys]
    ended = launcher.run(mpich, 4, words)
    assert ended.status == 2, ended
    assert "a step must not fail again after all went back" in ended.err
    assert '"now": 4' in ended.out


@pytest.mark.full
def test_record_has_what_was_counted_before_a_change(mpich, tmp_path):
    path = runs.write(tmp_path / "run.yaml", 2)
    keys = ("sync=allreduce", "fault.on_nan=skip", "fault.flip=gradients:1:22:nan", "fault.check_every=10")
    records, _ = scaled(mpich, 3, [(41, 3), (100, 2)], path, *keys)
    assert records[0]["skipped"] == [{"step": 22, "ranks": [1]}]
    assert records[0]["startup_s"] == records[1]["startup_s"]
    assert records[0]["bytes_moved"] > records[1]["bytes_moved"] * 0.6
    for record in records:
        assert record["exchange_s"] < record["epoch_s"]
