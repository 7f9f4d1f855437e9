"""The epoch loop."""

from contextlib import nullcontext
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from psframe.cluster.cluster import AgreedError
from psframe.cluster.startup import since_launch_s
from psframe.errors import UserError
from psframe.memory import audit
from psframe.record import checkpoint, metrics, trace, usage
from psframe.record.run_dir import RunDir, durably
from psframe.record.usage import Sample
from psframe.train import epoch
from psframe.train.epoch_metrics import Report, Seen, steps, summed, trace_waiting
from psframe.train.run import Run


def train(run: Run) -> None:
    """Train from ``run.epoch`` to the last epoch. All ranks must call.

    Stopped where a signal asks all ranks to leave.
    """
    run.cluster.barrier()
    run.labels["startup_s"] = since_launch_s()
    with run.usage or nullcontext(), run.guard:
        _train_epochs(run)
    if run.usage:  # what was sampled while the last epoch was evaluated and written down
        used = run.cluster.gather(run.usage.take(run.cluster.clock_offset_s))
        run.cluster.settle(partial(_write_usage, run, used or []))


def _train_epochs(run: Run) -> None:
    try:
        while run.epoch < run.config.train.epochs:
            if run.view:
                run.view.begin(run.epoch + 1)
            with np.errstate(over="ignore", invalid="ignore"):  # the loss is judged below, once and not by every rank
                seen = epoch.train_epoch(run)
                run.cluster.barrier()  # while others train, parameters may change
                report = _report(run, seen)
            every = run.cluster.gather(report)
            run.cluster.settle(partial(_settle, run, every or []))
            run.epoch += not run.concluded  # rank 0 has done so
            epoch.forget(run)
    except (AgreedError, epoch.Stopped):  # which are raised on all ranks
        run.sync.close()
        raise
    run.sync.close()


def _settle(run: Run, every: list[Report]) -> None:
    """Conclude an epoch, on rank 0; what was saved is durable when this was the last one, or raises UserError."""
    with run.keeper.closing(run.epoch + 1 == run.config.train.epochs) if run.keeper else nullcontext():
        _conclude(run, every)


def _conclude(run: Run, every: list[Report]) -> None:
    """Write down an epoch, on rank 0; UserError where training has diverged or that cannot be written."""
    n_train, n_test = run.facts.n_train, run.facts.n_test
    run.epoch, run.concluded = run.epoch + 1, True
    beside = run.team.worker is None and not run.sync.traits.in_step
    together = _together(run)
    measured = summed(every, n_train - run.begun_at, n_test, together=together, beside=beside)
    measured |= {"begun_at": run.begun_at, "lost": run.lost, "went_back": run.went_back}
    run.begun_at, run.lost, run.went_back = 0, [], []
    if run.run_dir:
        _write_steps(run, run.run_dir, every)
        run.record = _record(run, run.run_dir, measured)
        if run.trace.turns:
            if together:
                trace_waiting(every)
            every[0].traced[0].extend(run.trace.take()[0])  # of the checkpoint
            durably(lambda path: trace.append(path, [rank.traced for rank in every]), run.run_dir)
        _write_usage(run, [rank.used for rank in every])
    _judge_loss(run, measured)


def _write_steps(run: Run, run_dir: RunDir, every: list[Report]) -> None:
    """Write the loss of each step, if asked to."""
    if run.config.record.steps:
        first = run.step - len(every[0].seen.losses)
        lines = [
            {
                "epoch": run.epoch,
                "step": first + i + 1,
                "loss": loss,
                "n_samples": n_samples,
                "lr": lr,
            }
            for i, loss, n_samples, lr in steps(every)
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
    return not isfinite((measured["loss"] or 0.0) + measured["test_loss"])  # None: the run left behind all samples


def _judge_loss(run: Run, record: dict[str, Any]) -> None:
    """UserError where training has diverged; what was right until then is in the checkpoints of earlier epochs."""
    if _diverged(record):
        first = f" (gradients were not finite first in step {record['wild_step']})" if record["wild_step"] else ""
        steps = run.sync.traits.in_step
        else_ = "warm up with schedule.warmup_epochs" if steps else "optimizer.momentum, as delays add to it"
        raise UserError(
            f"the loss must stay finite, got {record['loss']} in epoch {run.epoch} and {record['test_loss']} on "
            f"the test set after it{first}; lower optimizer.lr, or {else_}"
        )


def _report(run: Run, seen: Seen) -> Report:
    """Evaluate, and return what this rank has to tell of an epoch."""
    seen.times += run.cluster.clock_offset_s if _together(run) else 0.0
    stalled_s = run.work.waited_s  # before the evaluation, in which stages wait, too
    tested, eval_s = epoch.evaluate(run)
    run.trace.add("evaluate", perf_counter() - eval_s)
    return Report(
        seen,
        run.team.worker,
        run.sync.tally.wait_s,
        epoch.moved(run),
        stalled_s,
        run.collective.flight,
        run.updater.update_s,
        run.updater.wild_step,
        run.guard.take(),
        run.sync.tally.counts(),
        tested,
        eval_s,
        audit.count(run.blocks, run.places.policies),
        run.trace.take(run.cluster.clock_offset_s),
        run.usage.take(run.cluster.clock_offset_s) if run.usage else [],
    )


def _together(run: Run) -> bool:
    """Whether every rank comes to each exchange."""
    return run.sync.traits.in_step and run.collective.traits.moves_data


def _record(run: Run, run_dir: RunDir, measured: dict[str, Any]) -> dict[str, Any]:
    """Write the epoch's record, and begin to write its checkpoint, which must not be durable before that."""
    every, began = run.config.checkpoint.every_epochs, perf_counter()
    due = every and (run.epoch % every == 0 or run.epoch == run.config.train.epochs)
    keeper = run.keeper if due and not _diverged(measured) else None  # or it would push out what is sound
    if keeper:
        keeper.take(run.learnt, run.rows(), run.epoch, run.step)
        run.trace.add("checkpoint", began)
    record = {
        "epoch": run.epoch,
        **{key: float(value) if isinstance(value, np.floating) else value for key, value in measured.items()},
        "checkpoint_s": perf_counter() - began if keeper else 0.0,
        **run.labels,
        "params_sha256": checkpoint.sha256(run.learnt.params),
    }
    durably(lambda path: metrics.append(path, "metrics.jsonl", [record]), run_dir)
    if board := run.board:
        durably(lambda path: board.epoch(record), run_dir)
    if keeper:
        keeper.start()
    if run.view:
        run.view.end(record)
    return record
