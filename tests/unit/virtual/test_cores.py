"""Ranks that compute share the cores of their node in turns."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.virtual.cores import SLICE_S, Cores
from tests.helpers.suite import examples

TASKS = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.05), st.floats(1e-5, 0.05)), min_size=1, max_size=12)


def ends(n_cores, tasks):
    """Return when tasks (node, begin, seconds) end."""
    cores, found = Cores(n_cores), {}
    left = sorted(enumerate(tasks), key=lambda numbered: numbered[1][1])
    while left or cores.next_s < float("inf"):
        if left and left[0][1][1] < cores.next_s:
            number, (node, at_s, seconds) = left.pop(0)
            cores.begin(node, at_s, seconds, lambda end_s, number=number: found.__setitem__(number, end_s))
        else:
            cores.finish()
    return [found[number] for number in range(len(tasks))]


@settings(max_examples=examples(100))
@given(st.integers(1, 3), TASKS)
def test_no_core_does_two_things_at_a_time_or_rests_while_one_waits(n_cores, tasks):
    found = ends(n_cores, tasks)
    for end_s, (_, at_s, seconds) in zip(found, tasks, strict=True):
        assert end_s >= at_s + seconds - 1e-12
    for node in range(3):
        spans = [(at_s, end_s, s) for (of, at_s, s), end_s in zip(tasks, found, strict=True) if of == node]
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
    tasks = [(node, 0.001 * k, 0.01 * (k + 1)) for node in (0, 1) for k in range(2)]
    assert ends(2, tasks) == pytest.approx([at_s + seconds for _, at_s, seconds in tasks])


@pytest.mark.parametrize(("n_tasks", "n_cores", "last"), [(4, 2, 2), (3, 2, 1.5), (5, 2, 2.5), (7, 3, 7 / 3)])
def test_long_steps_share_evenly(n_tasks, n_cores, last):
    seconds = 100 * SLICE_S
    found = ends(n_cores, [(0, 0.0, seconds)] * n_tasks)
    assert max(found) / seconds == pytest.approx(last, rel=0.03)
    assert min(found) / seconds > 0.9 * last - 0.1


def test_short_steps_take_whole_turns():
    assert ends(2, [(0, 0.0, SLICE_S / 2)] * 3) == pytest.approx([SLICE_S / 2, SLICE_S / 2, SLICE_S])
