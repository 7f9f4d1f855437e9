"""The epoch loop."""

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from psframe.cluster import AgreedError, Cluster, Team
from psframe.collectives.base import Base, cut
from psframe.config import Config
from psframe.data import Facts
from psframe.errors import UserError
from psframe.fault import Slow
from psframe.group import Group
from psframe.measures import Report, Seen, steps, summed, trace_waiting
from psframe.memory import audit
from psframe.memory.places import Places
from psframe.nn.base import Pass
from psframe.nn.network import Network
from psframe.optim import Updater
from psframe.record import checkpoint, metrics, trace, usage
from psframe.record.run_dir import RunDir, durably
from psframe.record.tensorboard import Board
from psframe.record.trace import Trace
from psframe.record.usage import Sample, Usage
from psframe.record.view import View
from psframe.sampling import Batches, Sampler
from psframe.schedule import learning_rate
from psframe.startup import since_launch_s
from psframe.sync.base import Mode
from psframe.traffic import Traffic


@dataclass
class Run:
    """All parts of a run on one rank; ``run_dir``, ``view`` and ``board`` on rank 0 only."""

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
    trace: Trace | None = None
    usage: Usage | None = None
    board: Board | None = None


def train(run: Run) -> list[dict[str, Any]]:
    """Train from ``run.epoch`` to the last epoch; return the records (rank 0; elsewhere empty). All ranks must call."""
    records: list[dict[str, Any]] = []
    run.cluster.barrier()
    run.labels["startup_s"] = since_launch_s()
    with run.usage or nullcontext():
        _train_epochs(run, records)
    if run.usage:  # what was sampled while the last epoch was evaluated and written down
        used = run.cluster.gather(run.usage.take(run.cluster.clock_offset_s))
        run.cluster.settle(partial(_write_usage, run, used or []))
    return records


def _train_epochs(run: Run, records: list[dict[str, Any]]) -> None:
    while run.epoch < run.config.train.epochs:
        if run.view:
            run.view.begin(run.epoch + 1)
        with np.errstate(over="ignore", invalid="ignore"):  # the loss is judged below, once and not by every rank
            seen = train_epoch(run)
            run.cluster.barrier()  # while others train, parameters may change
            report = _report(run, seen)
            run.epoch += 1
            every = run.cluster.gather(report)
            try:
                run.cluster.settle(partial(_conclude, run, every or [], records))
            except AgreedError:
                run.sync.close()
                raise
    run.sync.close()


def _conclude(run: Run, every: list[Report], records: list[dict[str, Any]]) -> None:
    """Write down an epoch, on rank 0; UserError where training has diverged or that cannot be written."""
    n_train, n_test = run.facts.n_train, run.facts.n_test
    beside = run.team.worker is None and not run.sync.lockstep
    together = _together(run)
    measured = summed(every, n_train, n_test, together=together, beside=beside)
    if run.run_dir:
        _write_steps(run, run.run_dir, every)
        records.append(_record(run, run.run_dir, measured))
        if run.trace:
            if together:
                trace_waiting(every)
            every[0].traced[0].extend(run.trace.take()[0])  # of the checkpoint
            durably(lambda path: trace.append(path, [rank.traced for rank in every]), run.run_dir)
        _write_usage(run, [rank.used for rank in every])
    _judge_loss(run, measured)


def _write_steps(run: Run, run_dir: RunDir, every: list[Report]) -> None:
    """Write the loss of each step, if asked to."""
    if run.config.record.steps:
        first = run.step - run.sampler.n_steps
        lines = [
            {
                "epoch": run.epoch,
                "step": first + i + 1,
                "loss": loss,
                "n_samples": n_samples,
                "lr": learning_rate_at(run, run.epoch - 1, i),
            }
            for i, loss, n_samples in steps(every)
        ]
        durably(lambda path: metrics.append(path, "steps.jsonl", lines), run_dir)
        if board := run.board:
            durably(lambda path: board.steps(lines), run_dir)


def _write_usage(run: Run, every: list[list[Sample]]) -> None:
    """Write what was sampled on each rank, if asked to."""
    if run.usage and run.run_dir:
        zero = run.usage.zero
        durably(lambda path: usage.append(path, run.epoch, every, zero), run.run_dir)


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
            f"the loss must stay finite, got {record['loss']} in epoch {run.epoch} and {record['test_loss']} on "
            f"the test set after it{first}; lower optimizer.lr, or {else_}"
        )


def train_epoch(run: Run) -> Seen:
    """Train one epoch; all ranks must call."""
    train, n_steps = run.config.train, run.sampler.n_steps
    losses, samples = np.zeros(n_steps), np.zeros(n_steps, np.int64)
    times: list[tuple[float, float, float]] = []
    met: list[bool] = []
    run.collective.clear()
    run.updater.clear()
    run.sync.clear()
    if run.trace:
        run.trace.begin()
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
        run.sync.step(run.sampler.samples_in(step), learning_rate_at(run, run.epoch, step), run.step + step + 1)
        met.append(run.sync.met)
        if run.trace and run.trace.on:
            run.trace.turn(*times[-1], {"bytes moved": _moved_bytes(run), "staleness": run.sync.tally.last})
        if run.view:
            run.view.step()
    draining = perf_counter()
    run.sync.drain()
    if run.trace:
        run.trace.end()
        run.trace.add("drain", draining)
    run.step += n_steps
    return Seen(begun, np.array(times).reshape(-1, 3), np.array(met, bool), perf_counter(), losses, samples)


def learning_rate_at(run: Run, epoch: int, step: int) -> float:
    """Return what the schedule makes of the learning rate for a step of an epoch, both counted from 0."""
    begun, ended = epoch + step / run.sampler.n_steps, epoch + (step + 1) / run.sampler.n_steps
    base_lr, epochs = run.updater.optimizer.lr, run.config.train.epochs
    return learning_rate(run.config.schedule, base_lr, epochs, run.sampler.global_batch, begun, ended)


def evaluate(run: Run) -> tuple[np.ndarray, float]:
    """Return the loss and the hits of this rank's share of the test set (the server has one, too), and the seconds."""
    began, found = perf_counter(), np.zeros(2)
    mine = cut(run.facts.n_test, run.cluster.n_ranks, run.cluster.rank)
    for lo in range(mine.start, mine.stop, run.sampler.max_batch):
        samples = np.arange(lo, min(lo + run.sampler.max_batch, mine.stop))
        found += run.network.evaluate(*run.batches.load("test", samples))
    return found, perf_counter() - began


def _report(run: Run, seen: Seen) -> Report:
    """Evaluate, and return what this rank has to tell of an epoch."""
    seen.times += run.cluster.clock_offset_s if _together(run) else 0.0
    tested, eval_s = evaluate(run)
    if run.trace:
        run.trace.add("evaluate", perf_counter() - eval_s)
    return Report(
        seen,
        run.team.worker,
        run.sync.tally.wait_s,
        _moved(run),
        run.collective.flight,
        run.updater.update_s,
        run.updater.wild_step,
        run.sync.tally.counts(),
        tested,
        eval_s,
        audit.count(run.blocks, run.places.policies),
        run.trace.take(run.cluster.clock_offset_s) if run.trace else ([], []),
        run.usage.take(run.cluster.clock_offset_s) if run.usage else [],
    )


def _moved(run: Run) -> np.ndarray:
    """Return the bytes that this rank has read, written and sent in this epoch."""
    return np.sum([(t.read, t.written, t.sent) for t in _traffics(run)], axis=0)


def _moved_bytes(run: Run) -> int:
    """Return the sum of these, after every traced turn: NumPy would take a tenth of a millisecond there."""
    return int(sum(t.read + t.written + t.sent for t in _traffics(run)))


def _traffics(run: Run) -> list[Traffic]:
    own = [run.updater.traffic] if run.sync.updates_together else []
    return [run.collective.traffic, *own, *run.sync.traffics()]


def _together(run: Run) -> bool:
    """Whether every rank comes to each exchange."""
    return run.sync.lockstep and run.collective.holds_together


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
        if run.trace:
            run.trace.add("checkpoint", began)
    record = {
        "epoch": run.epoch,
        **{key: float(value) if isinstance(value, np.floating) else value for key, value in measured.items()},
        "checkpoint_s": perf_counter() - began if written else 0.0,
        "lr": learning_rate_at(run, run.epoch - 1, run.sampler.n_steps - 1),
        **run.labels,
        "params_sha256": checkpoint.sha256(arena.params),
    }
    durably(lambda path: metrics.append(path, "metrics.jsonl", [record]), run_dir)
    if board := run.board:
        durably(lambda path: board.epoch(record), run_dir)
    if written:
        durably(lambda path: checkpoint.advance(written, keys.keep), run_dir)
    if run.view:
        run.view.end(record)
    return record
