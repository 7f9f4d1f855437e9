"""What ranks of a node tell each other between gates, over processes that die or stop."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.cluster.node_gather import CHUNK_BYTES
from tests.helpers.gates import Node, are_told
from tests.helpers.thinned import thinned

LENGTHS = st.sampled_from([0, 1, 7, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])


@pytest.fixture(scope="module")
def node():
    node = Node(3)
    yield node
    for process in node.ranks:
        process.kill()
        process.communicate()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LENGTHS, LENGTHS, LENGTHS), min_size=1, max_size=4))
def test_messages_of_any_length_arrive_whole(node, rounds):
    for turn, lengths in enumerate(rounds):
        said = [f"bytes([{rank} + {turn}]) * {n}" for rank, n in enumerate(lengths)]
        for me in range(3):
            heard = f"[{', '.join(said)}]" if me == 0 else "[]"
            told = "board.tell()" if me else f"board.tell({said[0]})"
            node.tell(f"assert board.gather({said[me]}) == {heard}; assert {told} == {said[0]}", me)
        assert node.answers(0, 1, 2) == ["passed"] * 3


@pytest.mark.parametrize("victim", thinned(range(3), (0, 2)))
@pytest.mark.parametrize("what", ["board.gather(bytes(100_000))", "board.tell(bytes(100_000))"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_rank_that_others_wait_for_is_named(start, victim, what, how):
    node = start(3, deadline_s=1, looks=0)
    node.signal(how, victim)
    others = sorted({0, 1, 2} - {victim})
    node.tell(what, *others)
    node.looked(1, *others)
    node.let()  # both have come: neither is late for the other
    are_told(node.answers(*others), [10 + victim], "sync.deadline_s" if how == signal.SIGSTOP else "has died")
