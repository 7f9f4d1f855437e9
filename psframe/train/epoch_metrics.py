"""Metrics of an epoch: measured on each rank (:class:`EpochTimings`, :class:`Report`), summed on rank 0."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psframe.memory.audit import Pages
from psframe.nn.metrics.meter import Sums
from psframe.record.trace import Count, Span
from psframe.record.usage import Sample
from psframe.sync import tally
from psframe.train import placement_report


@dataclass
class EpochTimings:
    """Measurements of this rank over an epoch, or over a part of one.

    Attributes
    ----------
    begun, left, ended : float
        Begin, end of the turns, and end after the exchanges in flight were drained, by ``CLOCK``, in
        seconds.
    times : list of tuple
        Of each turn, the times before data, compute and exchange; a float64 array (n_turns, 3) once joined.
    met : list of bool
        Of each turn, True if it had an exchange.
    losses : ndarray, shape (n_steps, n)
        Sums of losses over this rank's samples, by step; n is 1, or the number of blocks of a step.
    samples : ndarray, shape (n_steps,)
        This rank's samples, by step.
    rates : ndarray, shape (n_steps,)
        Learning rates, 0 for steps without this rank.
    absent_s : float
        Seconds of it before this rank joined.
    is_agreed : bool
        True once the ranks have agreed on the number of steps.
    row : ndarray, shape (n,)
        Losses of the current turn.
    """

    begun: float
    ended: float
    times: Any
    met: Any
    losses: np.ndarray
    samples: np.ndarray
    rates: np.ndarray
    left: float = 0.0
    is_agreed: bool = False
    absent_s: float = 0.0
    row: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def of(cls, n_steps: int, n_losses: int) -> "EpochTimings":
        """Return empty measurements of ``n_steps`` steps with ``n_losses`` sums of losses each."""
        losses, samples, rates = np.zeros((n_steps, n_losses)), np.zeros(n_steps, np.int64), np.zeros(n_steps)
        return cls(0.0, 0.0, [], [], losses, samples, rates, row=np.zeros(n_losses))

    def record_step(self, times: tuple[float, float, float], met: bool) -> None:
        """Record the times of a turn."""
        self.times.append(times)
        self.met.append(met)

    def cut(self, n_steps: int) -> None:
        """Cut the steps to the first ``n_steps``, which were the ones taken; those that are missing are zeros."""
        for name in ("losses", "samples", "rates"):
            values = getattr(self, name)[:n_steps]
            fill = [(0, n_steps - len(values))] + [(0, 0)] * (values.ndim - 1)
            setattr(self, name, np.pad(values, fill) if len(values) < n_steps else values)

    def cut_turns(self, n_turns: int, now: float) -> None:
        """Cut or fill the turns to ``n_turns``; a turn that was taken but not recorded has zero duration at ``now``."""
        self.times, self.met = self.times[:n_turns], self.met[:n_turns]
        missing = n_turns - len(self.met)
        self.times += [(now, now, now)] * missing
        self.met += [True] * missing

    @classmethod
    def joined(cls, parts: "Sequence[EpochTimings]") -> "EpochTimings":
        """Return the parts of an epoch, joined."""
        times = np.concatenate([np.array(part.times).reshape(-1, 3) for part in parts])
        met = np.concatenate([np.array(part.met, bool) for part in parts])
        losses, samples, rates = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("losses", "samples", "rates")
        )
        absent_s = sum(part.absent_s for part in parts)
        ends = parts[0].begun, parts[-1].ended
        return cls(*ends, times, met, losses, samples, rates, parts[-1].left, absent_s=absent_s)


@dataclass
class Report:
    """Report of a rank on an epoch, sent to rank 0.

    Attributes
    ----------
    timings : EpochTimings
        Measurements; times by rank 0's clock if all ranks take part in each exchange, else by its own.
    worker : int or None
        Number among the workers.
    wait_s : float
        Seconds of waiting, as counted by the sync mode.
    moved : ndarray of int64, shape (4,)
        Bytes read, written and sent, and those of them in other domains of memory.
    stalled_s : float
        Seconds that a stage, a shard, or a worker before the exchange waited for the others.
    flight : tuple of float
        Seconds of exchanges that overlap backward, and the share of these, in seconds, hidden behind compute.
    update_s : float
        Seconds of updates, a part of the exchanges.
    first_nonfinite_step : int
        First step with non-finite gradients; 0 if all were finite.
    guarded : dict
        Result of ``Guard.take``.
    counts : ndarray of int64
        Result of ``Tally.counts``.
    tested : ndarray, shape (n, 2)
        Sum of losses and number of hits over its share of the test set; n is 1, or the number of test batches with
        ``any_workers``, whose sums must not depend on the ranks.
    sums : Sums
        Sums of the metrics over its share.
    eval_s : float
        Seconds of the evaluation, metrics included.
    pages : dict of str to Pages
        Pages by role.
    page_moves : tuple of int, or None
        Pages that moved between tiers in steps, and those of them that came late; None if none were to.
    traced : tuple of lists
        Spans and counts from ``Trace.take``.
    used : list of Sample
        Result of ``Usage.take``.
    warned : dict of str to int
        Result of ``LibraryWarnings.take``.
    """

    timings: EpochTimings
    worker: int | None
    wait_s: float
    moved: np.ndarray
    stalled_s: float
    flight: tuple[float, float]
    update_s: float
    first_nonfinite_step: int
    guarded: dict[str, Any]
    counts: np.ndarray
    tested: np.ndarray
    sums: Sums
    eval_s: float
    pages: dict[str, Pages]
    page_moves: tuple[int, int] | None
    traced: tuple[list[Span], list[Count]]
    used: list[Sample]
    warned: dict[str, int] = field(default_factory=dict)


def summed(every: Sequence[Report], n_train: int, n_test: int, *, together: bool, beside: bool) -> dict[str, Any]:
    """Return the record of an epoch: the slowest rank's seconds, and the mean worker's seconds by phase.

    ``wait_s`` lasts until the last rank arrives at an exchange; in asynchronous modes, it is the mode's own count.
    ``exchange_s`` is the rest, less rank 0's updates.

    Parameters
    ----------
    every : sequence of Report
        By rank.
    n_train, n_test : int
        Samples of the training and the test set.
    together : bool
        True if all ranks take part in each exchange.
    beside : bool
        True if rank 0 updates while the workers compute.
    """
    data, compute, wait, exchange = phases(every, together)
    update_s = every[0].update_s
    epoch_s = max(report.timings.ended - report.timings.begun for report in every)
    *moved, remote = np.sum([report.moved for report in every], axis=0).tolist()
    flight_s, hidden_s = np.sum([report.flight for report in every], axis=0)
    loss, correct = np.sum([report.tested for report in every], axis=0).sum(axis=0) / n_test
    n_seen = _over_ranks(every, "samples").sum()
    counts = tally.described(np.sum([report.counts for report in every], axis=0), n_train)
    return {
        "epoch_s": epoch_s,
        "data_s": data,
        "compute_s": compute,
        "exchange_s": exchange if beside else max(0.0, exchange - update_s),
        "update_s": update_s,
        "wait_s": wait,
        "samples_per_s": counts["samples_used"] / epoch_s,
        **dict(zip(("bytes_read", "bytes_written", "bytes_sent"), moved, strict=True)),
        "bytes_moved": sum(moved),
        **({"bytes_remote": remote} if remote else {}),
        "bubble": _bubble(every),
        "overlap": hidden_s / flight_s if flight_s else None,
        "wild_step": min(
            (report.first_nonfinite_step for report in every if report.first_nonfinite_step), default=None
        ),
        **_guarded(every),
        **counts,
        "loss": _over_ranks(every, "losses").sum() / n_seen if n_seen else None,
        "lr": max((float(report.timings.rates[-1]) for report in every if len(report.timings.rates)), default=None),
        "test_loss": loss,
        "accuracy": correct,
        "eval_s": max(report.eval_s for report in every),
        **placement_report.record([report.pages for report in every]),
        **_page_moves(every),
    }


def _page_moves(every: Sequence[Report]) -> dict[str, int]:
    """Return the pages of all ranks that moved between tiers; nothing where none were to."""
    counts = [report.page_moves for report in every if report.page_moves]
    return dict(zip(("pages_moved", "pages_late"), map(sum, zip(*counts, strict=True)), strict=False))


def _bubble(every: Sequence[Report]) -> float | None:
    """Return the share of compute time in which stages, shards, or workers within a layer waited for each other.

    None if no rank waited.
    """
    stalled_s = sum(report.stalled_s for report in every)
    spent_s = sum(np.diff(report.timings.times, axis=1)[:, 1].sum() for report in every)
    return float(stalled_s / spent_s) if stalled_s else None


def _guarded(every: Sequence[Report]) -> dict[str, Any]:
    """Return skipped and repaired steps, which all ranks count alike, and seconds late by rank, summed over nodes."""
    late: dict[int, float] = {}
    for report in every:
        for member, seconds in report.guarded["late"].items():
            late[member] = late.get(member, 0.0) + seconds
    noted = every[0].guarded
    return {"skipped": noted["skipped"], "repaired": noted["repaired"], "late": {str(r): late[r] for r in sorted(late)}}


def phases(every: Sequence[Report], together: bool) -> np.ndarray:
    """Return the mean worker's seconds for data, compute, waiting and the rest, (4,)."""
    waits = [report.wait_s for report in every]
    if together:
        arrivals = np.array([report.timings.times[report.timings.met, 2] for report in every])
        waits = (arrivals.max(axis=0) - arrivals).sum(axis=1).tolist()
    spent = []
    for report, wait in zip(every, waits, strict=True):
        data, compute = np.diff(report.timings.times, axis=1).sum(axis=0)
        rest = report.timings.ended - report.timings.begun - report.timings.absent_s - data - compute - wait
        if report.worker is not None:
            spent.append((data, compute, wait, rest))
    return np.mean(spent, axis=0)


def trace_waiting(every: Sequence[Report]) -> None:
    """Add to each rank's trace the spans in which it idled until the last rank arrived at an exchange."""
    arrivals = np.array([report.timings.times[report.timings.met, 2] for report in every])
    for report, own_arrivals in zip(every, arrivals, strict=True):
        spans, _ = report.traced
        ended = {span[2]: span[3] for span in spans if span[0] == "exchange" and not span[1]}
        busy = sorted(span[2:] for span in spans if span[0] in ("update", "wait") and not span[1])
        for arrival, last_arrival in zip(own_arrivals.tolist(), arrivals.max(axis=0).tolist(), strict=True):
            if arrival in ended:  # a traced turn; clock errors between nodes may exceed the exchange's duration
                spans += [("wait", 0, *gap) for gap in _gaps(busy, arrival, min(last_arrival, ended[arrival]))]


def _gaps(busy: Sequence[tuple[float, float]], began: float, ended: float) -> Iterator[tuple[float, float]]:
    """Yield the gaps that the sorted spans ``busy`` leave between ``began`` and ``ended``."""
    for begin, end in busy[bisect_left(busy, (began, began)) :]:
        if begin >= ended:
            break
        if begin > began:
            yield began, begin
        began = max(began, end)
    if began < ended:
        yield began, ended


def steps(every: Sequence[Report]) -> list[tuple[int, float, int, float]]:
    """Return (index, mean loss, samples, learning rate) of each step of an epoch that had samples."""
    losses, samples = _over_ranks(every, "losses").sum(axis=1), _over_ranks(every, "samples")
    rates = np.max([report.timings.rates for report in every], axis=0)
    return [(int(i), losses[i] / samples[i], int(samples[i]), float(rates[i])) for i in np.flatnonzero(samples)]


def _over_ranks(every: Sequence[Report], name: str) -> np.ndarray:
    """Return an attribute of ``EpochTimings`` summed over ranks, in its shape."""
    return np.sum([getattr(report.timings, name) for report in every], axis=0)
