"""A chain of nodes that sums: the nodes that a lane waits for, who are named if they do not come."""

import pytest

from psframe.collectives.lanes import Chain


@pytest.mark.parametrize(
    ("node", "summed", "complete", "peers"),
    [(1, 0, 0, [0]), (1, 2, 1, [2]), (0, 2, 2, [1]), (1, 2, 2, [0, 2]), (2, 2, 2, [1])],
)
def test_chain_waits_for_nodes_that_exist(node, summed, complete, peers):
    chain = object.__new__(Chain)  # in the state that matters, without messages in flight
    chain.node, chain.last, chain.parts, chain.passing = node, 2, [None, None], [None, None]
    chain.summed, chain.n_complete = summed, complete
    assert chain.peers == peers
