"""Messages between nodes share the nodes' links: by the definition of max-min fairness, and as SimGrid has it."""

from math import inf, isclose
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.virtual import engines
from psframe.virtual.between import Message
from psframe.virtual.network import Network
from tests.helpers.suite import examples
from tests.helpers.virtual import needs_simgrid

RATE, LATENCY = 1000.0, 0.5


def arrivals(begun):
    """Return when each message arrives, by the order of ``begun``: (at_s, source, target, n_bytes)."""
    network, found = Network(RATE, LATENCY), {}

    def until(at_s):
        while network.is_busy and network.next_s <= at_s:
            number, arrived_s = network.finish()
            found[number] = arrived_s

    for number, (at_s, *message) in sorted(enumerate(begun), key=lambda each: each[1][0]):
        until(at_s)
        network.begin(number, at_s, *message)
    until(inf)
    return [found[number] for number in range(len(begun))]


def filled(flying):
    """Return the rates of messages (source, target), which rise together, and stop where a way is full."""
    rates, left = {}, dict(flying)
    used = dict.fromkeys([("out", a) for a, _ in flying.values()] + [("in", b) for _, b in flying.values()], 0.0)
    level = 0.0
    while left:
        crossing = {way: [n for n, (a, b) in left.items() if way in (("out", a), ("in", b))] for way in used}
        rise = min((RATE - used[way]) / len(some) for way, some in crossing.items() if some)
        level += rise
        for way, some in crossing.items():
            used[way] += rise * len(some)
        full = {n for way, some in crossing.items() for n in some if RATE - used[way] < 1e-9 * RATE}
        for number in full:
            rates[number] = level
            del left[number]
    return rates


def slowly(begun):
    """Return the same as :func:`arrivals` by the definition, all rates anew at each event."""
    rest, flying, found, now = dict(enumerate(begun)), {}, {}, 0.0
    while rest or flying:
        for number, (at_s, source, target, n_bytes) in list(rest.items()):
            if at_s <= now:
                flying[number] = [source, target, float(n_bytes)]
                del rest[number]
        rates = filled({number: (a, b) for number, (a, b, _) in flying.items()})
        ends = {number: now + flying[number][2] / rates[number] for number in flying}
        then = min([*ends.values(), *(at_s for at_s, *_ in rest.values())])
        for number, flow in list(flying.items()):
            flow[2] -= rates[number] * (then - now)
            if ends[number] <= then:
                found[number] = then + LATENCY
                del flying[number]
        now = then
    return [found[number] for number in range(len(begun))]


def test_message_alone_has_the_link():
    assert arrivals([(2.0, 0, 1, 500)]) == [2.0 + 0.5 + LATENCY]


def test_two_ways_of_a_link_are_apart():
    assert arrivals([(0.0, 0, 1, 500), (0.0, 1, 0, 500)]) == [0.5 + LATENCY] * 2


def test_what_one_leaves_the_others_share():
    begun = [(0.0, 0, 1, 1000), (0.0, 0, 2, 1000), (0.0, 3, 2, 3000)]  # the third gets all, once the second has left
    assert arrivals(begun) == [2.0 + LATENCY, 2.0 + LATENCY, 4.0 + LATENCY]


def test_message_without_bytes_takes_the_latency():
    assert arrivals([(0.0, 0, 1, 1000), (0.25, 0, 1, 0)]) == [1.0 + LATENCY, 0.25 + LATENCY]


def test_messages_of_a_stream_leave_one_behind_the_other():
    network = Network(RATE, LATENCY)
    begun = [network.begin(number, 0.0, 0, 1, n, stream="a") for number, n in enumerate((1000, 10))]
    network.begin(2, 0.0, 0, 1, 1000)  # which shares the link with one at a time
    assert begun == [True, False]
    arrived_s = dict(network.finish() for _ in range(3))
    assert arrived_s == pytest.approx({0: 2.0 + LATENCY, 2: 2.0 + LATENCY, 1: 2.01 + LATENCY})
    assert not network.is_busy


nodes = st.integers(0, 4)
message = st.tuples(st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.7]), nodes, nodes, st.integers(1, 3000)).filter(
    lambda each: each[1] != each[2]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(message, min_size=1, max_size=12))
def test_shares_are_those_of_the_definition(begun):
    for ours, theirs in zip(arrivals(begun), slowly(begun), strict=True):
        assert isclose(ours, theirs, rel_tol=1e-9)


def exchange(seed):
    """Return messages between a random number of nodes, of which most wait for an earlier one, or are in its stream."""
    draw, followed, messages = Random(seed), set(), []
    n_nodes = draw.choice([2, 3, 4, 8, 16, 32, 64])
    for number in range(draw.randrange(2, 300)):
        n_bytes, after = int(10 ** draw.uniform(0, 7)), draw.randrange(-1, number)
        if after >= 0 and after not in followed and draw.random() < 0.3:
            followed.add(after)
            messages.append(Message(after, 0.0, *messages[after][2:4], n_bytes, in_stream=True))
            continue
        after = after if draw.random() < 0.7 else -1
        delay_s = draw.choice([0.0, draw.expovariate(1000)])
        messages.append(Message(after, delay_s, *draw.sample(range(n_nodes), 2), n_bytes))
    return messages


@needs_simgrid
def test_simgrid_agrees_on_random_exchanges():
    for seed in range(20):
        messages = exchange(seed)
        ours = engines.own(messages, 1.25e9, 2e-5)
        theirs = engines.simgrid(messages, 1.25e9, 2e-5)
        assert ours == pytest.approx(theirs, rel=0.03), f"exchange({seed})"
        assert max(ours) == pytest.approx(max(theirs), rel=0.001), f"exchange({seed})"
