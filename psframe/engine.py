"""The epoch loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import residency
from psframe.cluster import Cluster, Team
from psframe.collectives.base import Collective, cut
from psframe.config import Config
from psframe.data import Facts
from psframe.errors import UserError, reason
from psframe.memory.places import Places
from psframe.nn.base import Pass
from psframe.nn.network import Network
from psframe.optim import Updater
from psframe.record import checkpoint, metrics
from psframe.record.run_dir import RunDir
from psframe.record.view import View
from psframe.sampling import Batches, Sampler
from psframe.schedule import learning_rate
from psframe.startup import since_launch_s
from psframe.sync.base import SyncMode


@dataclass
class Run:
    """All parts of a run on one rank; ``run_dir`` and ``view`` on rank 0 only."""

    config: Config
    cluster: Cluster
    team: Team
    facts: Facts
    network: Network
    sampler: Sampler
    batches: Batches
    places: Places
    collective: Collective
    updater: Updater
    sync: SyncMode
    labels: dict[str, Any]  # what stands in every record: modes, counts
    epoch: int = 0
    step: int = 0
    blocks: list[tuple[str, np.ndarray]] = field(default_factory=list)  # role and memory, to audit
    run_dir: RunDir | None = None
    view: View | None = None


def train(run: Run) -> list[dict[str, Any]]:
    """Train from ``run.epoch`` to the last epoch; return the records (rank 0; elsewhere empty). All ranks must call."""
    records = []
    run.cluster.comm.Barrier()
    run.labels["startup_s"] = since_launch_s()
    while run.epoch < run.config.train.epochs:
        if run.view:
            run.view.begin(run.epoch + 1)
        with np.errstate(over="ignore", invalid="ignore"):  # the loss is judged below, once and not by every rank
            timeline, losses = _epoch(run)
            measured = _measure(run, timeline) | _losses(run, losses)
            run.epoch += 1
            measured |= _evaluate(run)
        pages = residency.count(run.cluster, run.places, run.blocks)
        if pages is not None:
            measured |= residency.record(pages)
        if run.run_dir:
            records.append(_record(run, run.run_dir, measured))
        run.cluster.agree(lambda: _judge_loss(records[-1]))
    return records


def _diverged(measured: dict[str, Any]) -> bool:
    return not isfinite(measured["loss"] + measured["test_loss"])


def _judge_loss(record: dict[str, Any]) -> None:
    """UserError where training has diverged; what was right until then is in the checkpoints of earlier epochs."""
    if _diverged(record):
        raise UserError(
            f"the loss must stay finite, got {record['loss']} in epoch {record['epoch']} and {record['test_loss']} on "
            "the test set after it; lower optimizer.lr, or warm up with schedule.warmup_epochs"
        )


def _epoch(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Train one epoch; return times before data, compute, exchange and after it (n_steps, 4), and losses (n_steps,)."""
    train, worker, n_steps = run.config.train, run.team.worker, run.sampler.n_steps
    timeline, losses = np.zeros((n_steps, 4)), np.zeros(n_steps)
    run.collective.bytes_moved, run.updater.update_s = 0, 0.0
    run.cluster.comm.Barrier()
    begun = computing = perf_counter()
    order = run.sampler.permutation(run.epoch)
    for step in range(n_steps):
        if worker is not None:
            samples = order[run.sampler.share(step, worker)]
            x, labels = run.batches.load("train", samples, run.epoch)
            computing = perf_counter()
            losses[step], _ = run.network.gradients(x, labels, Pass(True, train.seed, run.epoch, samples))
        exchanging = perf_counter()
        run.step += 1
        run.sync.step(run.sampler.samples_in(step), _learning_rate(run, step), run.step)
        ended = perf_counter()
        timeline[step] = begun, computing, exchanging, ended
        begun = computing = ended
        if run.view:
            run.view.step()
    return timeline, losses


def _learning_rate(run: Run, step: int) -> float:
    begun, ended = run.epoch + step / run.sampler.n_steps, run.epoch + (step + 1) / run.sampler.n_steps
    base_lr, epochs = run.updater.optimizer.lr, run.config.train.epochs
    return learning_rate(run.config.schedule, base_lr, epochs, run.sampler.global_batch, begun, ended)


def _measure(run: Run, timeline: np.ndarray) -> dict[str, Any]:
    """Return where the epoch went: the slowest rank's seconds, and the mean worker's seconds by phase.

    ``wait_s`` runs until the last rank has come to an exchange, ``exchange_s`` from then on, less rank 0's updates.
    """
    comm = run.cluster.comm
    last = timeline[:, 2] + run.cluster.clock_offset_s
    own = last.copy()
    comm.Allreduce(MPI.IN_PLACE, last, MPI.MAX)
    data, compute, step = np.diff(timeline, axis=1).sum(axis=0)
    wait = (last - own).sum()
    phases = np.array([data, compute, wait, step - wait]) * (run.team.worker is not None)
    comm.Allreduce(MPI.IN_PLACE, phases)
    data, compute, wait, exchange = phases / run.team.n_workers
    epoch_s = comm.allreduce(timeline[-1, 3] - timeline[0, 0], MPI.MAX)
    moved = comm.allreduce(run.collective.bytes_moved)
    update_s = run.updater.update_s  # rank 0's, which writes the record
    return {
        "epoch_s": epoch_s,
        "data_s": data,
        "compute_s": compute,
        "exchange_s": exchange - update_s,
        "update_s": update_s,
        "wait_s": wait,
        "samples_per_s": run.facts.n_train / epoch_s,
        "bytes_moved": moved,
    }


def _losses(run: Run, losses: np.ndarray) -> dict[str, Any]:
    """Return the epoch's mean loss over samples; on rank 0 write steps.jsonl if asked to."""
    comm = run.cluster.comm
    every = np.zeros((comm.size, len(losses))) if comm.rank == 0 else None
    comm.Gather(losses, every)
    if every is None:
        return {}
    total = every.sum(axis=0)
    if run.config.record.steps and run.run_dir:
        first = run.step - len(total)
        lines = [
            {
                "epoch": run.epoch + 1,
                "step": first + i + 1,
                "loss": total[i] / run.sampler.samples_in(i),
                "n_samples": run.sampler.samples_in(i),
                "lr": _learning_rate(run, i),
            }
            for i in range(len(total))
        ]
        durably(lambda path: metrics.append(path, "steps.jsonl", lines), run.run_dir)
    return {"loss": total.sum() / run.facts.n_train}


def _evaluate(run: Run) -> dict[str, Any]:
    """Return test loss and accuracy; every rank, the server too, takes its share of the test set."""
    comm, began = run.cluster.comm, perf_counter()
    mine = cut(run.facts.n_test, comm.size, comm.rank)
    found = np.zeros(2)
    for lo in range(mine.start, mine.stop, run.sampler.max_batch):
        samples = np.arange(lo, min(lo + run.sampler.max_batch, mine.stop))
        found += run.network.evaluate(*run.batches.load("test", samples))
    comm.Allreduce(MPI.IN_PLACE, found)
    loss, correct = found / run.facts.n_test
    eval_s = comm.allreduce(perf_counter() - began, MPI.MAX)
    return {"test_loss": loss, "accuracy": correct, "eval_s": eval_s}


def _record(run: Run, run_dir: RunDir, measured: dict[str, Any]) -> dict[str, Any]:
    """Write the epoch's checkpoint and record, in the order that keeps both whole if it is cut short."""
    arena, keys = run.network.arena, run.config.checkpoint
    began, written = perf_counter(), None
    sound = not _diverged(measured)  # or it would push out checkpoints that are
    if sound and keys.every_epochs and (run.epoch % keys.every_epochs == 0 or run.epoch == run.config.train.epochs):
        saved = checkpoint.Saved(arena.params, arena.state, run.epoch, run.step, arena.layout.describe())
        written = durably(lambda path: checkpoint.write(path / "checkpoints", saved), run_dir)
    record = {
        "epoch": run.epoch,
        **{key: float(value) if isinstance(value, np.floating) else value for key, value in measured.items()},
        "checkpoint_s": perf_counter() - began if written else 0.0,
        "lr": _learning_rate(run, -1),
        **run.labels,
        "params_sha256": checkpoint.sha256(arena.params),
    }
    durably(lambda path: metrics.append(path, "metrics.jsonl", [record]), run_dir)
    if written:
        durably(lambda path: checkpoint.advance(written, keys.keep), run_dir)
    if run.view:
        run.view.end(record)
    return record


def durably(write: Callable[[Any], Any], run_dir: RunDir) -> Any:
    """Return ``write(run_dir.path)``; UserError where that cannot be written."""
    try:
        return write(run_dir.path)
    except OSError as error:
        raise UserError(
            f"the run directory must stay writable, got {str(run_dir.path)!r} ({reason(error)}); free space "
            "there and continue with checkpoint.resume=auto"
        ) from None
