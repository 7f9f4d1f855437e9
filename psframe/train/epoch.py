"""Epoch on one rank (:func:`train_epoch`): its turns, up to the end, a pause or a signal.

A turn loads one share of a step's batch, computes its gradients and exchanges them.
"""

import signal
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from psframe.cluster.startup import launcher_ended
from psframe.nn.metrics.meter import Meter, Sums
from psframe.record.clock import CLOCK
from psframe.record.flight import CHECKPOINT, EPOCH, EVALUATE, EXCHANGE, PAUSE, RING, STEP, in_phase
from psframe.record.traffic import Traffic
from psframe.train.callbacks.base import Requests
from psframe.train.checkpointer import Checkpointer
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.run import Run
from psframe.train.schedule import learning_rate


class Resized(Exception):
    """All ranks pause for a change of the ranks that train.

    Attributes
    ----------
    change : dict
        As in :func:`psframe.train.elastic.resize.resized`.
    """

    def __init__(self, change: dict[str, Any]):
        super().__init__()
        self.change = change


class Stopped(Exception):
    """All ranks were asked to stop, by a signal or a callback; rank 0 has written a checkpoint, if the run keeps any.

    Attributes
    ----------
    number : int
        Signal number; 0 for a callback.
    """

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.number = number


def train_epoch(run: Run) -> EpochTimings:
    """Train the rest of the epoch, and return its measurements until :func:`forget`. All ranks must call.

    Raises
    ------
    Stopped
        On every rank, after a signal.
    """
    run.collective.traffic.clear()
    run.collective.overlap.clear()
    run.updater.clear()
    run.tally.clear()
    run.work.begin()
    run.balance.begin()
    run.outputs.trace.begin()
    RING.leave(0)  # what an error has left open
    depth = RING.enter(EPOCH, run.progress.epoch + 1)
    while not run.progress.parts or run.sampler.n_left:
        _part(run)
    run.mover.rest()
    RING.leave(depth)
    return EpochTimings.joined(run.progress.parts)


def forget(run: Run) -> None:
    """Reset for the next epoch, once this one is reported. All ranks must call."""
    run.sampler.cursor = 0
    run.progress.forget()


def _part(run: Run) -> None:
    """Train until the epoch ends or rank 0 asks for a pause, then drain exchanges in flight."""
    run.sampler.epoch = run.progress.epoch
    n_steps, order = run.sampler.n_steps, run.sampler.permutation(run.progress.epoch)
    timings = EpochTimings.of(n_steps, run.work.n_losses)
    run.progress.parts.append(timings)
    run.sync.source.begin()
    if run.cluster.node_rank == 0:
        run.cluster.halt.reopen()
    run.cluster.barrier()
    checkpointer = run.outputs.checkpointer
    timings.begun = CLOCK.now()
    run.guard.begin(run.progress.epoch + 1, run.progress.step + 1)
    for step, worker in run.sync.turns(n_steps):
        _turn(run, timings, order, step, worker)
        run.balance.after_step()
        if checkpointer:
            _after_step(run, checkpointer, step)
    timings.left = CLOCK.now()
    run.sync.drain()
    if run.full_model:
        if checkpointer:
            checkpointer.rest()  # the writer reads these vectors in place
        run.full_model.refresh()
    run.outputs.trace.end()
    run.outputs.trace.add("drain", timings.left)
    timings.ended = CLOCK.now()
    change = _pause(run, timings)
    run.guard.end(run.progress.step)
    if change is not None:
        raise Resized(change)


def _turn(run: Run, timings: EpochTimings, order: np.ndarray, step: int, worker: int | None) -> None:
    """Compute ``worker``'s share of a step, unless None, and take part in the step's exchange."""
    loading = computing = CLOCK.now()
    compute, run_step = None, run.progress.step + step + 1
    depth = RING.enter(STEP, run_step)
    RING.step(run.progress.epoch + 1, run_step)
    rate = learning_rate_at(run, run.progress.epoch, step)
    if worker is not None:
        samples = run.sampler.samples(order, step, worker)
        compute = partial(run.work.gradients, samples, run.sampler.samples_in(step), run.progress.epoch, timings.row)
        timings.samples[step] += len(samples) * run.work.reports_loss  # once per sample: on the rank with its loss
    timings.row[:] = 0
    waited_s = run.work.waited_s
    computing += run.guard.compute_guarded(run_step, timings.row, compute, run.hook)
    timings.losses[step] += timings.row
    timings.rates[step] = rate
    times = loading, computing, run.guard.mark_arrival(run_step)
    if worker is not None:
        run.balance.note(len(samples), times[2] - loading - (run.work.waited_s - waited_s))
    RING.enter(EXCHANGE, run_step)
    exchanged = run.sync.step(run.sampler.samples_in(step), rate, run_step)
    RING.leave(depth + 1)
    if run.guard.finish_step(run_step):
        timings.losses[step] = timings.samples[step] = 0  # a dropped step counts nowhere
    timings.record_step(times, exchanged)
    if run.outputs.trace.on:
        counts = {"bytes moved": _moved_bytes(run), "staleness": run.tally.last}
        if worker is not None:
            counts["samples"] = len(samples)
        run.outputs.trace.turn(*times, counts)
    run.outputs.view.step()
    RING.leave(depth)


def _after_step(run: Run, checkpointer: Checkpointer, step: int) -> None:
    """Call the callbacks, and write a due checkpoint; ask for a pause if all ranks must agree or bring their state."""
    if not run.cluster.halt.signal and launcher_ended():
        run.cluster.halt.signal = signal.SIGTERM
    checkpointer.deliver()
    asks = run.outputs.calls.step(run.progress.step + step + 1)
    pauses = asks or bool(run.cluster.halt.signal) or checkpointer.failed or run.outputs.scaling.due()
    if not pauses and checkpointer.due():
        is_complete = run.sync.traits.complete_on_rank_0 and not run.full_model
        if is_complete:
            _save(run, checkpointer, run.sampler.done_after(step + 1), run.progress.step + step + 1)
        pauses = not is_complete
    if pauses and not checkpointer.asked:
        checkpointer.asked = True
        run.sync.source.stop()


@in_phase(CHECKPOINT)
def _save(run: Run, checkpointer: Checkpointer, cursor: int, step: int, always: bool = False) -> None:
    began = CLOCK.now()
    checkpointer.save(run.model_state, run.rows(), run.progress.epoch, step, cursor, always)
    run.outputs.trace.add("checkpoint", began)


@in_phase(PAUSE)
def _pause(run: Run, timings: EpochTimings) -> dict[str, Any] | None:
    """Agree on the samples done, and, after a requested pause, on what was asked for; return a change of the ranks.

    All ranks must call.

    Raises
    ------
    Stopped
        On every rank, after a signal or where a callback ends the run here.
    """
    done, steps, number, requests, change = run.cluster.run_on_root_in_time(partial(_settled, run, len(timings.losses)))
    timings.cut(steps)
    timings.is_agreed = True
    run.sampler.cursor = done
    run.progress.step += steps
    if requests is not None:
        apply_requests(run, requests)
        sums = run.cluster.gather_in_time((float(timings.losses.sum()), int(timings.samples.sum())))
        if sums:
            run.outputs.calls.losses(*map(sum, zip(*sums, strict=True)))
    if number or run.progress.stop:
        cause = signal.Signals(number).name if number else run.progress.stop
        epoch = run.progress.epoch + 1
        raise Stopped(number, f"left on {cause} after {done:,} of {run.sampler.n_samples:,} samples of epoch {epoch}")
    return change


def _settled(run: Run, n_steps: int) -> tuple[int, int, int, dict[str, Any] | None, dict[str, Any] | None]:
    """Return the epoch's samples done, the steps of this part, the signal to stop on (0: none), and what is asked for.

    That are requests of callbacks, None without callbacks or unless a pause was requested, and a change of the ranks,
    None for none. Rank 0.
    """
    sampler, checkpointer = run.sampler, run.outputs.checkpointer
    if not checkpointer or not checkpointer.asked:
        return sampler.n_samples, n_steps, 0, None, None
    checkpointer.asked = False
    done, calls, number = run.sync.source.done(), run.outputs.calls, run.cluster.halt.signal
    steps = sampler.steps_to(done)
    # what is asked in the last step waits for the end of the epoch
    inside = done < sampler.n_samples
    requests = calls.requests() if inside else Requests()
    asked = requests.save or bool(requests.stop)
    if asked or number or checkpointer.failed or checkpointer.due():
        _save(run, checkpointer, done, run.progress.step + steps, asked)
    if number or requests.stop:
        checkpointer.close()
    change = run.outputs.scaling.take() if inside and not number and not requests.stop else None
    return done, steps, number, asdict(requests) if calls.callbacks else None, change


def apply_requests(run: Run, requests: dict[str, Any]) -> None:
    """Do as the fields of a :class:`Requests` say, which all ranks agree on. All ranks must call."""
    if requests["lr"] is not None:
        run.progress.lr = requests["lr"]
    run.progress.stop = requests["stop"]


def learning_rate_at(run: Run, epoch: int, step: int) -> float:
    """Return the scheduled learning rate of a step, counted from 0 since the last pause, in an epoch, from 0."""
    sampler, base_lr, epochs = run.sampler, run.progress.lr or run.updater.optimizer.lr, run.config.train.epochs
    begun, ended = (epoch + sampler.done_after(steps) / sampler.n_samples for steps in (step, step + 1))
    return learning_rate(run.config.schedule, base_lr, epochs, sampler.global_batch, begun, ended)


@in_phase(EVALUATE)
def evaluate(run: Run) -> tuple[np.ndarray, Sums, float]:
    """Return losses and hits (n, 2) of this rank's share of the test set, its sums of the metrics, and the seconds.

    Servers have a share, too. All ranks must call.
    """
    began = CLOCK.now()
    meter = Meter(run.metrics)
    also = meter.add if run.metrics else None
    with run.evaluated.reading():
        tested = run.work.evaluate(run.facts.n_test, run.cluster.n_ranks, run.cluster.rank, also)
    return tested, meter.take(), CLOCK.now() - began


def moved(run: Run) -> np.ndarray:
    """Return this rank's bytes of the epoch, int64 (4,): read, written, sent, and those of other domains of memory."""
    return np.sum([(t.read, t.written, t.sent, t.remote) for t in traffics(run)], axis=0)


def _moved_bytes(run: Run) -> int:
    """Return the sum of :func:`moved`; runs after each traced turn, where NumPy would cost 0.1 ms."""
    return int(sum(t.read + t.written + t.sent for t in traffics(run)))


def traffics(run: Run) -> list[Traffic]:
    """Return the counts of the bytes that a rank of a run moves."""
    stage_alone = run.full_model and run.team.n_workers == 1  # its updates stay on this rank
    updates = [run.updater.traffic] if run.sync.traits.updates_shared and not stage_alone else []
    return [run.collective.traffic, *updates, *run.tally.traffics, *run.work.traffics()]
