"""Rates of memory tiers, with clocks that are replaced: bytes over seconds, of which tier and from where to where."""

import itertools
import os
import threading

import numpy as np
import pytest

from psframe.doctor import measure
from psframe.memory.topology import read
from tests.helpers.machine_trees import Memory, knl, machine

MIB = 1 << 20
PAGE = measure.compiled.numa.PAGE_BYTES


@pytest.fixture
def small(monkeypatch):
    """Memory of 1 MiB a vector, wherever it may be."""
    monkeypatch.setattr(measure, "VECTOR_BYTES", MIB)
    monkeypatch.setattr(measure, "MOVED_BYTES", MIB)
    monkeypatch.setattr(measure, "_memory", lambda node, n_bytes: np.zeros(n_bytes, np.uint8))


def clocks(late_s, lasts_s):
    """Return a clock of every thread's own, which begins by that much later than another thread's before it."""
    own, numbers, lock = threading.local(), itertools.count(), threading.Lock()

    def times(behind_s):
        yield -1.0  # of the turn that warms up
        for turn in itertools.count(1):
            yield from (10.0 * turn + behind_s, 10.0 * turn + behind_s + lasts_s * turn)

    def read_clock():
        if not hasattr(own, "times"):
            with lock:
                own.times = times(late_s * next(numbers))
        return next(own.times)

    return read_clock


@pytest.mark.parametrize(("n_threads", "seconds"), [(1, 0.5), (2, 0.75)])
def test_bandwidth_is_two_lines_read_and_one_written_that_counts_twice(
    small, tmp_path, monkeypatch, n_threads, seconds
):
    """Of all threads, from when the first of them begins until the last of them ends."""
    topology = read(machine(tmp_path, {0: Memory("0-3", 8)}))
    monkeypatch.setattr(measure, "perf_counter", clocks(0.25, 0.5))
    rates = measure._bandwidths(topology, [min(os.sched_getaffinity(0))] * n_threads, [0] * n_threads)
    spent = [seconds + 0.5 * turn for turn in range(measure.ROUNDS)]
    assert rates == pytest.approx([4 * MIB * n_threads / s / 1e9 for s in spent])


def test_rate_of_moves_is_that_of_the_pages_that_came(small, tmp_path, monkeypatch):
    """There in 1 s, and back, a quarter of them, in 2 s."""
    topology = read(knl(tmp_path))
    ends = itertools.accumulate(itertools.cycle((0.0, 1.0, 0.0, 2.0)))
    monkeypatch.setattr(measure, "perf_counter", lambda: next(ends))
    asked = []
    came = {0: MIB // PAGE // 4, 1: MIB // PAGE}
    monkeypatch.setattr(measure.compiled.numa, "move", lambda memory, nodes: asked.append(nodes) or came[nodes[0]])
    there, back = measure._moves(topology, 0, 1)
    assert asked == [[1], [0]] * measure.ROUNDS
    assert there == pytest.approx([MIB / 1e9] * measure.ROUNDS)
    assert back == pytest.approx([MIB / 4 / 2 / 1e9] * measure.ROUNDS)


def test_every_tier_has_its_rate_and_both_ways_between_neighbours(tmp_path, monkeypatch):
    topology = read(knl(tmp_path, clusters=4))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 16, 5, 13})  # 0 and 16 are threads of one core
    asked = []

    def bandwidths(_, cpus, nodes):
        asked.append((cpus, nodes))
        return [float(nodes[0])] * 3 + [9.0]

    monkeypatch.setattr(measure, "_bandwidths", bandwidths)
    monkeypatch.setattr(measure, "_moves", lambda _, fast, slow: ([10.0 + fast], [20.0 + slow]))
    found = measure.measured(topology)
    assert asked == [([0, 5, 13], [4, 5, 7]), ([0, 5, 13], [0, 1, 3])]
    assert found["n_threads"] == 3
    assert [(name, rate["median"], rate["high"]) for name, rate in found["gbps"].items()] == [
        ("hbw", 4.0, 5.25),
        ("ddr", 0.0, 2.25),
    ]
    assert {name: rate["median"] for name, rate in found["move_gbps"].items()} == {
        "hbw to ddr": 14.0,
        "ddr to hbw": 20.0,
    }


@pytest.mark.parametrize("n_shares", [1, 2, 3, 7])
def test_room_is_whole_pages_of_a_quarter_of_what_is_free(tmp_path, n_shares):
    topology = read(machine(tmp_path, {0: Memory("0-3", 8, 4)}))
    room = measure._room(topology, 0, n_shares, 1 << 40)
    assert room % PAGE == 0
    assert 0 <= topology.node(0).free_bytes / 4 / n_shares - room < PAGE
    assert measure._room(topology, 0, n_shares, MIB + 1) == MIB, "more than is asked for"
