"""The epoch loop."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import residency
from psframe.cluster import AgreedError, Cluster, Team
from psframe.collectives.base import Base, cut
from psframe.config import Config
from psframe.data import Facts
from psframe.errors import UserError, reason
from psframe.fault import Slow
from psframe.group import Group
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
from psframe.sync import tally
from psframe.sync.base import Mode

NEVER = 1 << 62  # no step


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
    collective: Base
    updater: Updater
    sync: Mode
    group: Group
    slow: Slow
    labels: dict[str, Any]  # what stands in every record: modes, counts
    boundaries: Collection[int] = ()  # layers at which gradients leave while backward goes on
    leave: Callable[[slice], None] | None = None
    epoch: int = 0
    step: int = 0
    blocks: list[tuple[str, np.ndarray]] = field(default_factory=list)  # role and memory, to audit
    run_dir: RunDir | None = None
    view: View | None = None


def train(run: Run) -> list[dict[str, Any]]:
    """Train from ``run.epoch`` to the last epoch; return the records (rank 0; elsewhere empty). All ranks must call."""
    records = []
    run.cluster.barrier()
    run.labels["startup_s"] = since_launch_s()
    while run.epoch < run.config.train.epochs:
        if run.view:
            run.view.begin(run.epoch + 1)
        with np.errstate(over="ignore", invalid="ignore"):  # the loss is judged below, once and not by every rank
            seen = train_epoch(run)
            measured = _measure(run, seen) | _losses(run, seen)
            run.epoch += 1
            measured |= evaluate(run)
        pages = residency.count(run.cluster, run.places, run.blocks)
        if pages is not None:
            measured |= residency.record(pages)
        if run.run_dir:
            records.append(_record(run, run.run_dir, measured))
        run.cluster.barrier()  # while rank 0 writes
        try:
            run.cluster.agree(lambda: _judge_loss(run, records[-1]))
        except AgreedError:
            run.sync.close()
            raise
    run.sync.close()
    return records


def _diverged(measured: dict[str, Any]) -> bool:
    return not isfinite(measured["loss"] + measured["test_loss"])


def _judge_loss(run: Run, record: dict[str, Any]) -> None:
    """UserError where training has diverged; what was right until then is in the checkpoints of earlier epochs."""
    if _diverged(record):
        first = f" (gradients were not finite first in step {record['wild_step']})" if record["wild_step"] else ""
        else_ = (
            "warm up with schedule.warmup_epochs" if run.sync.lockstep else "optimizer.momentum, as delays add to it"
        )
        raise UserError(
            f"the loss must stay finite, got {record['loss']} in epoch {record['epoch']} and {record['test_loss']} on "
            f"the test set after it{first}; lower optimizer.lr, or {else_}"
        )


@dataclass
class Seen:
    """What an epoch was on this rank.

    Attributes
    ----------
    times : ndarray, shape (n_turns, 3)
        Before data, compute and exchange.
    met : ndarray of bool, shape (n_turns,)
        Whether all ranks exchanged something then.
    begun, ended : float
        When the epoch began, and when the rank had brought what was under way to an end.
    losses, samples : ndarray, shape (n_steps,)
        Sums over the samples that it computed gradients for, and how many these were, by step of the epoch.
    """

    begun: float
    times: np.ndarray
    met: np.ndarray
    ended: float
    losses: np.ndarray
    samples: np.ndarray


def train_epoch(run: Run) -> Seen:
    """Train one epoch; all ranks must call."""
    train, n_steps = run.config.train, run.sampler.n_steps
    losses, samples = np.zeros(n_steps), np.zeros(n_steps, np.int64)
    times: list[tuple[float, float, float]] = []
    met: list[bool] = []
    run.collective.clear()
    run.updater.clear()
    run.sync.clear()
    order = run.sampler.permutation(run.epoch)
    run.cluster.barrier()
    begun = perf_counter()
    for step, worker in run.sync.turns(n_steps):
        loading = computing = perf_counter()
        if worker is not None:
            mine = order[run.sampler.share(step, worker)]
            x, labels = run.batches.load("train", mine, run.epoch)
            computing = perf_counter()
            loss, _ = run.network.gradients(
                x, labels, Pass(True, train.seed, run.epoch, mine), run.boundaries, run.leave
            )
            losses[step] += loss
            samples[step] += len(mine)
            run.slow.pause(perf_counter() - computing)
        times.append((loading, computing, perf_counter()))
        run.sync.step(run.sampler.samples_in(step), _learning_rate(run, step), run.step + step + 1)
        met.append(run.sync.met)
        if run.view:
            run.view.step()
    run.sync.drain()
    run.step += n_steps
    return Seen(begun, np.array(times).reshape(-1, 3), np.array(met, bool), perf_counter(), losses, samples)


def _learning_rate(run: Run, step: int) -> float:
    begun, ended = run.epoch + step / run.sampler.n_steps, run.epoch + (step + 1) / run.sampler.n_steps
    base_lr, epochs = run.updater.optimizer.lr, run.config.train.epochs
    return learning_rate(run.config.schedule, base_lr, epochs, run.sampler.global_batch, begun, ended)


def _measure(run: Run, seen: Seen) -> dict[str, Any]:
    """Return where the epoch went: the slowest rank's seconds, and the mean worker's seconds by phase.

    ``wait_s`` runs until the last rank has come to an exchange, or is what the mode has counted where ranks come when
    they like; ``exchange_s`` is the rest, less rank 0's updates.
    """
    comm = run.cluster.comm
    run.cluster.barrier()  # at the gates, which notice a rank that does not come; MPI would spin for ever
    data, compute = np.diff(seen.times, axis=1).sum(axis=0)
    wait = _waited(run, seen)
    rest = seen.ended - seen.begun - data - compute - wait
    phases = np.array([data, compute, wait, rest]) * (run.team.worker is not None)
    comm.Allreduce(MPI.IN_PLACE, phases)
    data, compute, wait, exchange = phases / run.team.n_workers
    epoch_s = comm.allreduce(seen.ended - seen.begun, MPI.MAX)
    traffics = [run.collective.traffic, *([run.updater.traffic] if run.sync.updates_together else ())]
    moved = np.array([[t.read, t.written, t.sent] for t in (*traffics, *run.sync.traffics())]).sum(axis=0)
    comm.Allreduce(MPI.IN_PLACE, moved)
    flight_s, hidden_s = comm.allreduce(np.array(run.collective.flight))
    wild_step = comm.allreduce(run.updater.wild_step or NEVER, MPI.MIN)
    counts = run.sync.tally.counts()
    comm.Allreduce(MPI.IN_PLACE, counts)
    update_s = run.updater.update_s  # rank 0's, which writes the record
    beside = run.team.worker is None and not run.sync.lockstep  # while the workers compute
    did = tally.described(counts, run.facts.n_train)
    return {
        "epoch_s": epoch_s,
        "data_s": data,
        "compute_s": compute,
        "exchange_s": exchange if beside else max(0.0, exchange - update_s),
        "update_s": update_s,
        "wait_s": wait,
        "samples_per_s": did["samples_used"] / epoch_s,
        **dict(zip(("bytes_read", "bytes_written", "bytes_sent"), moved.tolist(), strict=True)),
        "bytes_moved": int(moved.sum()),
        "overlap": hidden_s / flight_s if flight_s else None,
        "wild_step": wild_step if wild_step < NEVER else None,
        **did,
    }


def _waited(run: Run, seen: Seen) -> float:
    """Return the seconds that this rank has waited for others. All ranks must call."""
    if not (run.sync.lockstep and run.collective.holds_together):
        return run.sync.tally.wait_s
    own = seen.times[seen.met, 2] + run.cluster.clock_offset_s
    last = own.copy()
    run.cluster.comm.Allreduce(MPI.IN_PLACE, last, MPI.MAX)
    return float((last - own).sum())


def _losses(run: Run, seen: Seen) -> dict[str, Any]:
    """Return the epoch's mean loss over samples; on rank 0 write steps.jsonl if asked to."""
    comm = run.cluster.comm
    mine = np.stack([seen.losses, seen.samples])
    every = np.zeros((comm.size, *mine.shape)) if comm.rank == 0 else None
    comm.Gather(mine, every)
    if every is None:
        return {}
    total, samples = every.sum(axis=0)
    if run.config.record.steps and run.run_dir:
        first = run.step - len(total)
        lines = [
            {
                "epoch": run.epoch + 1,
                "step": first + i + 1,
                "loss": total[i] / samples[i],
                "n_samples": int(samples[i]),
                "lr": _learning_rate(run, i),
            }
            for i in range(len(total))
            if samples[i]
        ]
        durably(lambda path: metrics.append(path, "steps.jsonl", lines), run.run_dir)
    return {"loss": total.sum() / samples.sum()}


def evaluate(run: Run) -> dict[str, Any]:
    """Return test loss and accuracy; every rank, the server too, takes its share of the test set."""
    comm, began = run.cluster.comm, perf_counter()
    mine = cut(run.facts.n_test, comm.size, comm.rank)
    found = np.zeros(2)
    for lo in range(mine.start, mine.stop, run.sampler.max_batch):
        samples = np.arange(lo, min(lo + run.sampler.max_batch, mine.stop))
        found += run.network.evaluate(*run.batches.load("test", samples))
    run.cluster.barrier()
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
        rows = run.sync.state()
        state = np.stack(rows) if rows else np.empty((0, arena.layout.size), np.float32)
        saved = checkpoint.Saved(arena.params, state, run.epoch, run.step, arena.layout.describe())
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
