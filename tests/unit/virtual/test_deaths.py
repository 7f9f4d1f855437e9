"""A rank dies at its time, whatever it does then, and others notice it at that time."""

import pytest

from psframe.cluster.gates import PeerLost
from psframe.predict import machine
from psframe.predict.exchange import Node
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.job import Job
from psframe.virtual.site import world

DIES_S, LONG_S = 0.5, 5.0
NODE, LINK = Node(machine.read("knl-7250-mcdram"), 3), machine.link("10")


def played(body, dies_s):
    """Return what ``body(comm, sleep)`` returns on each of three ranks, None if it died, and the ranks."""
    costs = Costs(Premises([0, 0, 0], lambda *_: 0.0, 0.0, NODE, LINK, dies_s=dies_s))
    every = world(costs.ranks, Job([0, 0, 0], None, costs))
    found = costs.ranks.run(lambda number: body(every[number], costs.ranks.sleep))
    return found, costs.ranks.ranks


@pytest.mark.parametrize("does", ["waits", "sleeps"])
def test_rank_dies_at_its_time(does):
    def body(comm, sleep):
        if comm.rank == 1:
            sleep(LONG_S)
        elif comm.rank == 2:
            with pytest.raises(PeerLost, match="rank 0 has died"):
                comm.recv(0)
        elif does == "waits":
            comm.recv(1)
        else:
            sleep(LONG_S)
        return comm.ranks.now_s

    found, ranks = played(body, {0: DIES_S})
    assert found[0] is None
    assert [rank.lives for rank in ranks] == [False, True, True]
    assert DIES_S <= found[2] < 1.1 * DIES_S
    assert found[1] == pytest.approx(LONG_S)


def test_rank_that_has_ended_dies_no_more():
    found, ranks = played(lambda comm, sleep: sleep(0.1), {2: DIES_S})
    assert all(rank.lives for rank in ranks)
    assert max(rank.at_s for rank in ranks) == pytest.approx(0.1)
    assert found == [None] * 3


def test_rank_dies_where_all_wait_for_it():
    def body(comm, sleep):
        with pytest.raises(PeerLost):
            comm.recv(1)
        return comm.ranks.now_s

    found, _ = played(body, {1: DIES_S})
    assert found[1] is None
    assert min(found[0], found[2]) >= DIES_S
