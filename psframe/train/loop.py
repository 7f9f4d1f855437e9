"""Epoch loop (:func:`train`): train, evaluate, gather, and let rank 0 record each epoch."""

from dataclasses import asdict
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from psframe.cluster.cluster import AgreedError
from psframe.cluster.startup import since_launch_s
from psframe.errors import UserError
from psframe.memory import audit
from psframe.nn.metrics.meter import conclude
from psframe.record import checkpoint, metrics, trace, usage
from psframe.record.clock import CLOCK
from psframe.record.flight import CHECKPOINT, RECORD, RING, STATE, TRAINS, in_phase, phase
from psframe.record.library_warnings import LIBRARIES
from psframe.record.log import LOG
from psframe.record.run_dir import RunDir, durably
from psframe.record.usage import Sample
from psframe.train import epoch
from psframe.train.callbacks.base import Requests
from psframe.train.epoch_metrics import EpochTimings, Report, steps, summed, trace_waiting
from psframe.train.run import Run


def train(run: Run) -> None:
    """Train from ``run.progress.epoch`` to the last epoch. All ranks must call.

    Raises
    ------
    Stopped
        On every rank, after a signal has asked the job to stop.
    """
    run.cluster.barrier()
    RING.put(STATE, TRAINS)
    run.labels.setdefault("startup_s", since_launch_s())
    with run.outputs.usage, run.guard, run.mover:
        _train_epochs(run)
    if run.config.record.usage:  # samples since the last epoch's report
        used = run.cluster.gather_in_time(run.outputs.usage.take(run.cluster.clock_offset_s))
        run.cluster.run_on_root_in_time(partial(_write_usage, run, used or []))


def _train_epochs(run: Run) -> None:
    try:
        while run.progress.epoch < run.config.train.epochs and not run.progress.stop:
            run.outputs.view.begin(run.progress.epoch + 1)
            with np.errstate(over="ignore", invalid="ignore"):  # rank 0 checks the loss, see _check_loss
                timings = epoch.train_epoch(run)
                run.cluster.barrier()  # evaluate only once no rank changes parameters any more
                report = _report(run, timings)
            reports = run.cluster.gather_in_time(report)
            requests = run.cluster.run_on_root_in_time(partial(_settle, run, reports or []))
            run.progress.epoch += not run.progress.concluded  # rank 0 counted it in _conclude
            epoch.apply_requests(run, requests)
            epoch.forget(run)
            if requests["change"]:
                raise epoch.Resized(requests["change"])
    except (AgreedError, epoch.Stopped):  # collective: raised on every rank
        run.sync.close()
        raise
    run.sync.close()


@in_phase(RECORD)
def _settle(run: Run, every: list[Report]) -> dict[str, Any]:
    """Conclude an epoch; return the callbacks' requests, and a change of the ranks (None for none), as a dict. Rank 0.

    After the last epoch, or on UserError, wait until all checkpoints are durable.
    """
    checkpointer, is_last = run.outputs.checkpointer, run.progress.epoch + 1 == run.config.train.epochs
    if not checkpointer:
        return asdict(_conclude(run, every)) | {"change": None}
    with checkpointer.closing():
        requests = _conclude(run, every)
        ends = is_last or bool(requests.stop)
        if ends:
            checkpointer.close()
    # also where ranks cannot pause inside an epoch
    return asdict(requests) | {"change": None if ends else run.outputs.scaling.take()}


def _conclude(run: Run, every: list[Report]) -> Requests:
    """Record an epoch on rank 0; raise UserError if training has diverged, or a callback, metric or write fails."""
    n_train, n_test, progress, outputs = run.facts.n_train, run.facts.n_test, run.progress, run.outputs
    progress.epoch, progress.concluded = progress.epoch + 1, True
    beside = run.team.worker is None and not run.sync.traits.in_step
    in_step = together(run)
    measured = summed(every, n_train - progress.begun_at, n_test, together=in_step, beside=beside)
    measured |= {"begun_at": progress.begun_at, "lost": progress.lost, "went_back": progress.went_back}
    if progress.resized:
        measured["resized"] = progress.resized
    LIBRARIES.tell([report.warned for report in every])
    requests = Requests()
    values, complaint = conclude(run.metrics, [report.sums for report in every])
    if run.metrics:
        measured["metrics"] = values
    if outputs.run_dir:
        _write_steps(run, outputs.run_dir, every)
        progress.record, requests = _record(run, outputs.run_dir, measured)
        if outputs.trace.turns:
            if in_step:
                trace_waiting(every)
            every[0].traced[0].extend(outputs.trace.take()[0])  # the checkpoint's spans
            durably(lambda path: trace.append(path, [report.traced for report in every]), outputs.run_dir)
        _write_usage(run, [report.used for report in every])
    _check_loss(run, measured)
    if complaint:  # behind the epoch's record and checkpoint, which are valid
        raise UserError(complaint)
    return requests


def _write_steps(run: Run, run_dir: RunDir, every: list[Report]) -> None:
    """Write the loss of each step if ``record.steps`` is set."""
    if run.config.record.steps:
        first = run.progress.step - len(every[0].timings.losses)
        lines = [
            {
                "epoch": run.progress.epoch,
                "step": first + i + 1,
                "loss": loss,
                "n_samples": n_samples,
                "lr": lr,
            }
            for i, loss, n_samples, lr in steps(every)
        ]
        durably(lambda path: metrics.append(path, "steps.jsonl", lines), run_dir)
        durably(lambda path: run.outputs.board.steps(lines), run_dir)


def _write_usage(run: Run, every: list[list[Sample]]) -> None:
    """Write each rank's resource samples if ``record.usage`` is set."""
    if run.config.record.usage and run.outputs.run_dir:
        zero = run.outputs.usage.zero
        durably(lambda path: usage.append(path, run.progress.epoch, every, zero), run.outputs.run_dir)


def _diverged(measured: dict[str, Any]) -> bool:
    return not isfinite((measured["loss"] or 0.0) + measured["test_loss"])  # loss: None if no samples were left


def _check_loss(run: Run, record: dict[str, Any]) -> None:
    """Raise UserError if training has diverged; the checkpoints of earlier epochs remain valid."""
    if _diverged(record):
        epoch_number = run.progress.epoch
        note = f" (gradients were not finite first in step {record['wild_step']})" if record["wild_step"] else ""
        in_step = run.sync.traits.in_step
        advice = "warm up with schedule.warmup_epochs" if in_step else "optimizer.momentum, as delays add to it"
        raise UserError(
            f"the loss must stay finite, got {record['loss']} in epoch {epoch_number} and {record['test_loss']} on "
            f"the test set after it{note}; lower optimizer.lr, or {advice}"
        )


def _report(run: Run, timings: EpochTimings) -> Report:
    """Evaluate this rank's share of the test set, and return its report of the epoch."""
    timings.times += run.cluster.clock_offset_s if together(run) else 0.0
    data_s, compute_s = np.diff(timings.times, axis=1).sum(axis=0)
    n_samples, took_s = timings.samples.sum(), timings.ended - timings.begun
    LOG.debug(f"{n_samples:,} samples in {took_s:.3f} s, of these data {data_s:.3f} s, compute {compute_s:.3f} s")
    stalled_s = run.work.waited_s  # read before the evaluation, during which stages wait too
    tested, sums, eval_s = epoch.evaluate(run)
    run.outputs.trace.add("evaluate", CLOCK.now() - eval_s)
    report = Report(
        timings,
        run.team.worker,
        run.tally.wait_s,
        epoch.moved(run),
        stalled_s,
        run.collective.overlap.overlap_s,
        run.updater.update_s,
        run.updater.first_nonfinite_step,
        run.guard.take(),
        run.tally.counts(),
        tested,
        sums,
        eval_s,
        audit.count(run.blocks, run.places.policies),
        run.mover.take(),
        run.outputs.trace.take(run.cluster.clock_offset_s),
        run.outputs.usage.take(run.cluster.clock_offset_s),
        LIBRARIES.take(),
    )
    if run.progress.counted:
        run.progress.counted.add_to(report)
    return report


def together(run: Run) -> bool:
    """Return True if every rank takes part in each exchange of a run."""
    return run.sync.traits.in_step and run.collective.traits.moves_data


def _record(run: Run, run_dir: RunDir, measured: dict[str, Any]) -> tuple[dict[str, Any], Requests]:
    """Write the epoch's record, then start its checkpoint: no checkpoint may become durable before its record.

    Return the record, and the callbacks' requests on it.
    """
    progress, outputs = run.progress, run.outputs
    record = {
        "epoch": progress.epoch,
        **{key: float(value) if isinstance(value, np.floating) else value for key, value in measured.items()},
        "checkpoint_s": 0.0,
        **run.labels,
        **({"shares": list(run.balance.shares)} if run.balance.shares else {}),
        "params_sha256": checkpoint.sha256(run.model_state.params),
    }
    if outputs.checkpointer:
        outputs.checkpointer.deliver()
    outputs.calls.epoch(progress.epoch, progress.step, record)
    requests, began = outputs.calls.requests(), CLOCK.now()
    due = run.config.checkpoint.is_due(progress.epoch, run.config.train.epochs)
    asked = requests.save or bool(requests.stop)
    # a diverged one would displace valid checkpoints
    checkpointer = outputs.checkpointer if (due or asked) and not _diverged(measured) else None
    if checkpointer:
        with phase(CHECKPOINT):
            checkpointer.take(run.model_state, run.rows(), progress.epoch, progress.step, always=asked)
        outputs.trace.add("checkpoint", began)
        record["checkpoint_s"] = CLOCK.now() - began
    durably(lambda path: metrics.append(path, "metrics.jsonl", [record]), run_dir)
    durably(lambda path: outputs.board.epoch(record), run_dir)
    if checkpointer:
        checkpointer.start()
    outputs.view.end(record)
    return record, requests
