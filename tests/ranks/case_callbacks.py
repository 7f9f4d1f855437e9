"""Callbacks: one word for all ranks, in every mode; none makes ranks differ or hang."""

import json
from math import isclose
from time import sleep

import numpy as np
import yaml

from psframe.cluster import communicators
from psframe.cluster.cluster import AgreedError
from psframe.cluster.joining import join
from psframe.record import checkpoint, metrics, stopped
from psframe.tensors import newest
from psframe.train import command
from psframe.train.callbacks.base import Callback
from psframe.train.callbacks.learning_rate_finder import LearningRateFinder
from tests.helpers.suite import IS_FULL
from tests.ranks.every_mode import MODES, key
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import TINY, folder, hashes

MOMENTS = ("on_run_begin", "on_step_end", "on_epoch_end", "on_checkpoint", "on_run_end")
ACTIONS = ("raise", "stop", "save", "lr", "sleep", "record")
PLAIN = (
    "sync={mode: sync_ps, server: colocated}",
    "sync=allreduce",
    "sync={mode: sync_ps, servers: 2}",
)
#: callbacks tried in each mode
N_TRIED = 12 if IS_FULL else 1
#: modes in which they are tried: the default suite has every third
TRIED = (*PLAIN, *map(key, MODES))[:: 1 if IS_FULL else 3]


def trained(world, where, *keys, callbacks=()):
    """Train on all ranks; return the error's text or "", the run's folder, and its progress, the same on all ranks."""
    run, error = None, ""
    try:
        content = {**yaml.safe_load(TINY), "record": {"dir": str(where / "runs"), "steps": True}}
        with communicators.freed():
            run, _ = command.train(join(world), content, keys, True, callbacks)
            run.cluster.close()
    except AgreedError as agreed:
        error = str(agreed)
    place = (run.progress.epoch, run.progress.step, run.progress.lr, run.progress.stop) if run else None
    ended = world.allgather((error, place))
    assert len(set(ended)) == 1, ended
    runs = sorted((where / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns) if world.rank == 0 else None
    return error, world.bcast(runs[-1] if runs else None), place


class Random(Callback):
    """Callback that does something at the ``n``-th of a kind of moments."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.moment, self.action = str(rng.choice(MOMENTS)), str(rng.choice(ACTIONS))
        self.n = 1 if self.moment in ("on_run_begin", "on_run_end") else int(rng.integers(1, 6))
        self.done = self.late = False

    def __getattribute__(self, name):
        if name not in MOMENTS:
            return super().__getattribute__(name)
        return lambda control, *given: self._meet(name, control)

    def _meet(self, name, control):
        if name == self.moment and self.n:
            self.n -= 1
            if not self.n:
                self.done, self.late = True, name in MOMENTS[3:] and control.epoch == 2
                self._act(control)

    def _act(self, control):
        if self.action == "raise":
            raise ZeroDivisionError("on purpose")
        if self.action == "sleep":
            sleep(0.05)
        else:
            given = {"lr": (0.01,), "stop": ("enough",)}.get(self.action, ())
            if self.action == "record":
                control.record(lucky=7)
            else:
                getattr(control, "set_lr" if self.action == "lr" else self.action)(*given)


def _try(world, mode, seed):
    callback = Random(seed)
    with folder(world) as where:
        error, path, place = trained(world, where, mode, callbacks=[callback])
        done, late, action = world.bcast((callback.done, callback.late, callback.action))
        note = mode, seed, action, callback.moment, done, late, error, place
        assert bool(error) == (done and action == "raise"), note
        if error:
            assert error.startswith("a callback must not raise, got ZeroDivisionError in case_callbacks.py"), note
            return
        epoch, _, rate, reason = place
        heeded = done and not late  # after the last epoch there is no boundary any more
        assert rate == (0.01 if heeded and action == "lr" else None), note
        assert reason == ("enough" if heeded and action == "stop" else ""), note
        assert epoch == 2 or reason, note
        if world.rank == 0:
            assert stopped.is_marked(path) == bool(reason), note
            recorded = metrics.read(path)
            assert [record["epoch"] for record in recorded] == list(range(1, epoch + 1)), note


@ranks(3, 7)
def random_callbacks_end_all_ranks_alike_in_every_mode(world):
    for number, mode in enumerate(TRIED):
        for turn in range(N_TRIED):
            _try(world, mode, 1000 * number + turn)


@ranks(4, full=True)
def random_callbacks_end_stages_and_shards_alike(world):
    for turn in range(N_TRIED):
        for cut in ("pipeline: 2", "model: 2"):
            _try(world, f"parallel={{{cut}}}", turn)


class Noting(Callback):
    """Callback that writes down what it is told."""

    def __init__(self):
        self.steps, self.epochs, self.saved = [], [], []

    def on_step_end(self, control):
        self.steps.append(control.step)

    def on_epoch_end(self, control, record):
        self.epochs.append((control.epoch, control.step, record["accuracy"]))
        control.record(double=2 * record["accuracy"])

    def on_checkpoint(self, control, path):
        self.saved.append(checkpoint.step_of(path))


@ranks(1, 3)
def callbacks_that_ask_for_nothing_change_no_bit(world):
    with folder(world) as where:
        plain = hashes(world, world.size, where)
    with folder(world) as where:
        noting = Noting()
        _, path, (epoch, step, _, _) = trained(world, where, callbacks=[noting])
        if world.rank == 0:
            recorded = metrics.read(path)
            assert [record["params_sha256"] for record in recorded] == plain
            assert [record["double"] for record in recorded] == [2 * record["accuracy"] for record in recorded]
            assert noting.steps == list(range(1, step + 1))
            assert [told[:2] for told in noting.epochs] == [(1, step // 2), (2, step)]
            assert noting.saved == [step // 2, step]
            assert epoch == 2


class Stops(Callback):
    def __init__(self, step):
        self.at = step

    def on_step_end(self, control):
        if control.step == self.at:
            control.stop("enough")


@ranks(3)
def stop_inside_an_epoch_leaves_a_checkpoint_to_continue_to_the_same_bits(world):
    with folder(world) as where:
        whole = hashes(world, world.size, where)
        _, path, (epoch, step, _, reason) = trained(world, where, callbacks=[Stops(5)])
        assert (epoch, reason) == (0, "enough")
        assert 5 <= step < 13
        if world.rank == 0:
            assert newest(path).step == step
        _, other, _ = trained(world, where, "checkpoint.resume=auto", "train.epochs=1")
        assert other != path, "auto takes no run that was stopped for good"
        _, again, (epoch, *_) = trained(world, where, f"checkpoint.resume={path}")
        assert (again, epoch) == (path, 2)
        if world.rank == 0:
            assert [record["params_sha256"] for record in metrics.read(path)] == whole
            assert not stopped.is_marked(path)


class Saves(Callback):
    def __init__(self, step):
        self.at, self.saved = step, []

    def on_step_end(self, control):
        if control.step == self.at:
            control.save()

    def on_checkpoint(self, control, path):
        self.saved.append(checkpoint.step_of(path))


@ranks(3, 5)
def bounded_modes_over_nodes_pause_once_all_steps_are_done(world):
    """Rank 0, the server, is alone on its node, where no worker's step begins."""
    modes = ["sync={mode: async_ps, staleness: 1}"] + ["sync={mode: sync_ps, backup_workers: 1}"] * (world.size > 3)
    for mode in modes:
        with folder(world) as where, own_network(world, min(1, world.rank)):
            saves = Saves(2)
            _, path, (_, n_steps, *_) = trained(world, where, mode, callbacks=[saves])
            if world.rank == 0:
                numbers = [json.loads(line)["step"] for line in (path / "steps.jsonl").read_text().splitlines()]
                assert numbers == list(range(1, n_steps + 1)), (mode, numbers)
                assert [record["begun_at"] for record in metrics.read(path)] == [0, 0]
                assert saves.saved == [n_steps // 2, n_steps], mode


class Rates(Callback):
    def on_epoch_end(self, control, record):
        control.set_lr(control.lr / 2)


@ranks(3)
def rate_that_a_callback_sets_is_that_of_all_ranks(world):
    for mode in ("sync=allreduce", "sync={mode: local_sgd, every: 3, post_local: 1}"):
        with folder(world) as where:
            _, path, _ = trained(world, where, mode, "train.epochs=3", callbacks=[Rates()])
            if world.rank == 0:
                assert [record["lr"] for record in metrics.read(path)] == [0.05, 0.025, 0.0125]


@ranks(3)
def early_stopping_ends_the_run_and_the_best_checkpoint_stays(world):
    with folder(world) as where:
        keys = (
            "train.epochs=40",
            "optimizer.lr=0.3",
            "checkpoint.keep=1",
            "train.stop={metric: test_loss, patience: 2}",
        )
        error, path, (epoch, _, _, reason) = trained(world, where, *keys, "checkpoint.best=test_loss")
        assert not error
        assert epoch < 40
        assert reason.startswith("test_loss not better than")
        if world.rank == 0:
            losses = [record["test_loss"] for record in metrics.read(path)]
            best = int(np.argmin(losses)) + 1
            assert epoch == best + 2
            assert checkpoint.best(path / "checkpoints").epoch == best
            assert newest(path).epoch == epoch
            assert len([*(path / "checkpoints").glob("*.h5")]) == 2
        error, _, _ = trained(world, where, "train.stop={metric: acuracy}")
        assert "did you mean 'accuracy'?" in error


@ranks(2)
def run_ends_once_it_has_reached_its_goal_or_its_seconds(world):
    with folder(world) as where:
        keys = ("train.epochs=8", "optimizer.lr=0.1")
        error, path, _ = trained(world, where, *keys)
        losses = world.bcast([r["test_loss"] for r in metrics.read(path)] if world.rank == 0 else None)
        goal = next(loss for loss in losses if loss < losses[0])
        stop = f"train.stop={{metric: test_loss, reach: {goal!r}, patience: 1000}}"
        error, path, (epoch, _, _, reason) = trained(world, where, *keys, stop)
        assert not error
        assert epoch == losses.index(goal) + 1
        assert reason == f"test_loss has reached {goal:g}"
        if world.rank == 0:
            assert newest(path).epoch == epoch
        limit = "train.stop={metric: test_loss, seconds: 1.0e-6, patience: 1000}"
        error, _, (epoch, _, _, reason) = trained(world, where, "train.epochs=40", limit)
        assert (error, epoch, reason) == ("", 1, "1e-06 s of training are over")


@ranks(3)
def range_test_notes_a_loss_for_each_rate(world):
    for mode in ("sync=allreduce", "sync=async_ps"):
        finder = LearningRateFinder(1e-4, 1e2, steps=25)
        with folder(world) as where:
            error, _, (_, _, _, reason) = trained(world, where, mode, "train.epochs=20", callbacks=[finder])
        assert not error
        assert "range test" in reason
        if world.rank == 0:
            assert 5 < len(finder.rates) == len(finder.losses) <= 25
            steps = np.diff(np.log(finder.rates))
            assert isclose(steps.min(), steps.max(), rel_tol=1e-6)
            assert finder.rates[0] <= finder.suggestion <= finder.rates[-1]
