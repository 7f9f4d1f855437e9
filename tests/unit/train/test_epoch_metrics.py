"""Seconds of an epoch by phase, measurements that are joined or cut, and the record that all ranks' reports make."""

from types import SimpleNamespace

import numpy as np
import pytest

from psframe.nn.metrics.meter import Sums
from psframe.sync.tally import Tally
from psframe.train.epoch_metrics import EpochTimings, Report, phases, summed

#: before data, compute and exchange of two turns: 1 s and 2 s of data, 2 s and 3 s of computing
TURNS = ((10.0, 11.0, 13.0), (15.0, 17.0, 20.0))


def report(turns=TURNS, *, met=(True, True), worker=0, wait_s=0.0, absent_s=0.0, begun=10.0, ended=25.0):
    losses, samples, rates = np.zeros((1, 1)), np.zeros(1, int), np.zeros(1)
    times = np.array(turns).reshape(-1, 3)
    seen = EpochTimings(begun, ended, times, np.array(met, bool), losses, samples, rates, absent_s=absent_s)
    return SimpleNamespace(timings=seen, worker=worker, wait_s=wait_s)


def later(seconds):
    """Return the turns, of which the exchanges begin by so many seconds later."""
    return [(data, compute, exchange + seconds) for data, compute, exchange in TURNS]


@pytest.mark.parametrize(
    ("wait_s", "absent_s", "rest"), [(0.0, 0.0, 7.0), (1.5, 0.0, 5.5), (0.0, 5.0, 2.0), (1.5, 5.0, 0.5)]
)
def test_exchange_is_the_rest_of_the_time_that_a_worker_was_there(wait_s, absent_s, rest):
    found = phases([report(wait_s=wait_s, absent_s=absent_s)], together=False)
    assert found.tolist() == [3.0, 5.0, wait_s, rest]


def test_phases_are_means_over_the_workers_alone():
    ranks = [report(worker=None, wait_s=99.0), report(worker=0, wait_s=1.0), report(worker=1, wait_s=3.0, ended=27.0)]
    assert phases(ranks, together=False).tolist() == [3.0, 5.0, 2.0, (7 - 1 + 9 - 3) / 2]


@pytest.mark.parametrize("n_met", [0, 1, 2])
def test_workers_wait_for_the_last_to_come_to_an_exchange_that_they_have(n_met):
    """A rank that only serves is waited for, too; those that are there count no wait of their own."""
    met = [number < n_met for number in range(2)]
    ranks = [
        report(later(1.0), worker=None, met=met, wait_s=99.0),
        report(worker=0, met=met, wait_s=99.0),
        report(later(0.25), worker=1, met=met, wait_s=99.0),
    ]
    data, compute, wait, rest = phases(ranks, together=True)
    assert (data, compute) == (3.0, (5.0 + 5.5) / 2)
    assert wait == n_met * (1.0 + 0.75) / 2
    assert rest == 15 - data - compute - wait


def test_rank_that_joined_exchanged_from_then_on():
    """Its turns before count as met when those of rank 0 were, and last no time."""
    joined = report([(13.0, 13.0, 13.0), TURNS[1]], absent_s=5.0)
    found = phases([report(), joined], together=True)
    assert found.tolist() == [2.5, 4.0, 0.0, (7.0 + (15 - 5 - 2 - 3)) / 2]


def part(n_steps, begun, absent_s=0.0):
    made = EpochTimings.of(n_steps, 2)
    made.begun, made.left, made.ended, made.absent_s = begun, begun + n_steps, begun + n_steps + 0.5, absent_s
    for step in range(n_steps):
        made.record_step((begun + step, begun + step + 0.25, begun + step + 0.5), step % 2 == 0)
        made.losses[step], made.samples[step], made.rates[step] = begun + step, 8 + step, 0.5 / (1 + step)
    return made


def test_joined_parts_are_the_whole_epoch():
    parts = [part(3, 10.0, absent_s=2.0), part(0, 20.0), part(2, 30.0, absent_s=0.25)]
    whole = EpochTimings.joined(parts)
    assert (whole.begun, whole.left, whole.ended, whole.absent_s) == (10.0, 32.0, 32.5, 2.25)
    assert whole.times[:, 0].tolist() == [10.0, 11.0, 12.0, 30.0, 31.0]
    assert whole.met.tolist() == [True, False, True, True, False]
    assert whole.losses.tolist() == [[10.0] * 2, [11.0] * 2, [12.0] * 2, [30.0] * 2, [31.0] * 2]
    assert whole.samples.tolist() == [8, 9, 10, 8, 9]
    assert whole.rates.tolist() == pytest.approx([0.5, 0.25, 0.5 / 3, 0.5, 0.25])


def test_steps_are_cut_or_filled_with_zeros():
    for n_steps in (0, 1, 3, 5):
        cut, whole = part(3, 10.0), part(3, 10.0)
        cut.cut(n_steps)
        for name in ("losses", "samples", "rates"):
            values = getattr(cut, name)
            assert len(values) == n_steps, name
            assert values[:3].tolist() == getattr(whole, name)[:n_steps].tolist(), name
            assert not values[3:].any(), name


def test_turns_are_cut_or_filled_with_some_of_no_duration():
    for n_turns in (0, 1, 3, 5):
        cut = part(3, 10.0)
        cut.cut_turns(n_turns, 99.0)
        assert len(cut.times) == len(cut.met) == n_turns
        assert cut.times[:3] == part(3, 10.0).times[:n_turns]
        assert cut.times[3:] == [(99.0,) * 3] * max(0, n_turns - 3)
        assert cut.met == [True, False, True, True, True][:n_turns]


def counted(used, *staleness):
    tally = Tally()
    tally.used = used
    for lag in staleness:
        tally.saw(lag)
    return tally.counts()


def whole(rates, **changed):
    """Return the report of a rank with steps at these rates, of which a sample each has a loss of 0.5."""
    n = len(rates)
    steps = {"losses": np.full((n, 1), 0.5), "samples": np.full(n, 1), "rates": np.array(rates)}
    timings = EpochTimings(10.0, 25.0, np.array(TURNS), np.array([True, True]), **steps)
    own = {
        "timings": timings, "worker": 0, "wait_s": 0.5, "moved": np.array([1, 2, 3, 0]), "stalled_s": 0.0,
        "flight": (0.0, 0.0), "update_s": 0.25, "first_nonfinite_step": 0, "counts": counted(2, 0, 1),
        "guarded": {"skipped": [], "repaired": [], "late": {}}, "tested": np.array([[1.0, 2], [3.0, 4]]),
        "sums": Sums(), "eval_s": 0.5, "pages": {}, "page_moves": None, "traced": ([], []), "used": [],
    }  # fmt: skip
    return Report(**{**own, **changed})


@pytest.mark.parametrize(
    ("rates", "last"),
    [
        ([[0.1, 0.3, 0.2]], 0.2),
        ([[0.3, 0.1], [0.3, 0.1]], 0.1),
        ([[0.5, 0.0], [0.5, 0.4]], 0.4),  # the first rank had no part in the last step
        ([[0.5, 0.4], [0.5, 0.0]], 0.4),
        ([[], []], None),
    ],
)
def test_rate_of_an_epoch_is_that_of_its_last_step(rates, last):
    assert summed([whole(own) for own in rates], 9, 8, together=False, beside=False)["lr"] == last


def test_record_of_one_rank_without_events_has_none():
    record = summed([whole([])], 9, 8, together=False, beside=False)
    for name in ("loss", "lr", "bubble", "overlap", "wild_step"):
        assert record[name] is None, name
    assert not {"bytes_remote", "pages_moved", "pages_late"} & set(record)


def test_record_is_of_all_ranks():
    first = whole([0.1, 0.1], update_s=1.5, flight=(4.0, 1.0), first_nonfinite_step=7, page_moves=(5, 1))
    first.guarded = {"skipped": [{"step": 3, "ranks": [1]}], "repaired": [], "late": {2: 1.0, 1: 0.5}}
    other = whole([0.1, 0.1], update_s=9.0, flight=(4.0, 2.0), first_nonfinite_step=4, eval_s=0.75, stalled_s=2.0)
    other.guarded, other.moved = {"skipped": [], "repaired": [], "late": {2: 0.25}}, np.array([10, 20, 30, 7])
    other.counts, other.timings.ended, other.worker = counted(4, 1, 3), 27.0, 1
    other.timings.losses[:] = 1.5
    record = summed([first, other], 9, 8, together=False, beside=False)
    assert record["epoch_s"] == 17
    assert (record["data_s"], record["compute_s"], record["wait_s"]) == (3.0, 5.0, 0.5)
    assert (record["update_s"], record["exchange_s"]) == (1.5, 7.5 - 1.5)
    assert (record["samples_used"], record["samples_per_s"]) == (6, 6 / 17)
    assert [record[f"bytes_{kind}"] for kind in ("read", "written", "sent", "moved", "remote")] == [11, 22, 33, 66, 7]
    assert (record["bubble"], record["overlap"], record["wild_step"]) == (2.0 / 10.0, 3.0 / 8.0, 4)
    assert (record["skipped"], record["late"]) == ([{"step": 3, "ranks": [1]}], {"1": 0.5, "2": 1.25})
    assert record["staleness"] == {"0": 1, "1": 2, "3": 1}
    assert (record["loss"], record["test_loss"], record["accuracy"]) == ((2 * 0.5 + 2 * 1.5) / 4, 8 / 8, 12 / 8)
    assert (record["eval_s"], record["pages_moved"], record["pages_late"]) == (0.75, 5, 1)
    beside = summed([first, other], 9, 8, together=False, beside=True)
    assert beside["exchange_s"] == 7.5, "rank 0 updates while the workers exchange"
