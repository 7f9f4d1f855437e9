"""Ranks that compute share the cores of their node in turns."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.virtual.cores import LEAST_S, TICK_S, Cores
from tests.helpers.suite import examples

#: node, begin, seconds, and whether it goes first
TASK = st.tuples(st.integers(0, 2), st.floats(0, 0.05), st.floats(1e-5, 0.05), st.booleans())
TASKS = st.lists(TASK, min_size=1, max_size=12)
TURN_S = LEAST_S + TICK_S


def ends(n_cores, tasks):
    """Return when tasks end."""
    cores, found = Cores(n_cores), {}

    def ended(number, end_s):
        assert number not in found
        found[number] = end_s

    left = sorted(enumerate(tasks), key=lambda numbered: numbered[1][1])
    while left or cores.next_s < float("inf"):
        if left and left[0][1][1] < cores.next_s:
            number, (node, at_s, seconds, first) = left.pop(0)
            cores.begin(node, number, at_s, seconds, partial(ended, number), first)
        else:
            cores.finish()
    return [found[number] for number in range(len(tasks))]


@settings(max_examples=examples(100))
@given(st.integers(1, 3), TASKS)
def test_no_core_does_two_things_at_a_time_or_rests_while_one_waits(n_cores, tasks):
    found = ends(n_cores, tasks)
    for end_s, (_, at_s, seconds, _) in zip(found, tasks, strict=True):
        assert end_s >= at_s + seconds - 1e-12
    for node in range(3):
        spans = [(at_s, end_s, s) for (of, at_s, s, _), end_s in zip(tasks, found, strict=True) if of == node]
        times = sorted({t for span in spans for t in span[:2]})
        for a, b in pairwise(times):
            inside = [s for at_s, end_s, s in spans if a <= at_s and end_s <= b]
            assert sum(inside) <= n_cores * (b - a) + 1e-9
        if spans:
            idle = _without_work(spans)
            assert max(end_s for _, end_s, _ in spans) <= idle + sum(s for _, _, s in spans) + 1e-9


def _without_work(spans):
    """Return the latest begin, up to which a core may have rested."""
    return max(at_s for at_s, _, _ in spans)


def test_as_many_as_cores_do_not_disturb_each_other():
    tasks = [(node, 0.001 * k, 0.01 * (k + 1), False) for node in (0, 1) for k in range(2)]
    assert ends(2, tasks) == pytest.approx([at_s + seconds for _, at_s, seconds, _ in tasks])


@pytest.mark.parametrize(("n_tasks", "n_cores"), [(4, 2), (3, 2), (5, 2), (7, 3)])
def test_all_of_a_core_have_their_turns(n_tasks, n_cores):
    """A core's tasks end about when it has done all of them; no core rests while a task waits."""
    seconds = 200 * TURN_S
    found = ends(n_cores, [(0, 0.0, seconds, False)] * n_tasks)
    assert max(found) >= n_tasks / n_cores * seconds - 1e-9
    assert max(found) <= -(-n_tasks // n_cores) * seconds + 1e-9
    assert min(found) >= 0.9 * (n_tasks // n_cores) * seconds


def test_short_steps_take_whole_turns():
    assert ends(2, [(0, 0.0, LEAST_S / 2, False)] * 3) == pytest.approx([LEAST_S / 2, LEAST_S / 2, LEAST_S])


def test_core_with_nothing_to_do_takes_what_waits_for_another():
    seconds = [10 * TURN_S, LEAST_S / 2, LEAST_S / 2]
    assert ends(2, [(0, 0.0, s, False) for s in seconds]) == pytest.approx([seconds[0], LEAST_S / 2, LEAST_S])


def test_who_goes_first_interrupts_what_goes_on_behind_it():
    seconds = 10 * TURN_S
    at_s = 0.5 * LEAST_S
    first_s, later_s = ends(1, [(0, 0.0, seconds, False), (0, at_s, 0.001, True)])
    assert later_s == pytest.approx(at_s + 0.001)
    assert first_s == pytest.approx(seconds + 0.001)


def test_lengths_of_turns_are_drawn_by_the_seed():
    def end(seed):
        found, cores = {}, Cores(1, seed)
        for number in range(2):
            cores.begin(0, number, 0.0, 3.3 * TURN_S, partial(found.__setitem__, number))
        while cores.next_s < float("inf"):
            cores.finish()
        return found[0]

    assert end(1) == end(1) != end(2)
