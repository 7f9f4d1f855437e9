"""Links between a node's ranks: messages, and peers that have ended."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from psframe.cluster import node_channel
from psframe.cluster.gates import PeerLost
from psframe.cluster.node_channel import LeaderEnded, Link


@pytest.fixture
def star():
    """The links of a first rank and two others."""
    pairs = [socket.socketpair() for _ in range(2)]
    links = [Link([first for first, _ in pairs], True), *(Link([other], False) for _, other in pairs)]
    yield links
    for link in links:
        link.close()


def on_all(links, call):
    with ThreadPoolExecutor(len(links)) as threads:
        return list(threads.map(call, links, range(len(links))))


def test_bytes_of_any_length_go_both_ways(star):
    long = [bytes([rank]) * (rank * 3_000_000) for rank in range(3)]
    first, *others = on_all(star, lambda link, rank: link.gather(long[rank]))
    assert sorted(first) == long
    assert others == [[], []]
    assert on_all(star, lambda link, rank: link.spread(long[2] if rank == 0 else b"")) == [long[2]] * 3
    assert on_all(star, lambda link, rank: link.tell((1, None) if rank == 0 else rank)) == [[1, None]] * 3


@pytest.mark.parametrize("wait", [lambda link: link.gather(b"x"), lambda link: link.tell("x")])
def test_first_rank_notices_one_that_has_ended(star, wait):
    star[2].close()
    with pytest.raises(PeerLost, match="a rank of this node has died") as lost:
        wait(star[0])
    assert lost.value.dead
    assert lost.value.speaks


@pytest.mark.parametrize("wait", [lambda link: link.gather(b"x" * 3_000_000), lambda link: link.tell()])
def test_others_notice_that_the_first_has_ended(star, wait):
    star[0].close()
    with pytest.raises(LeaderEnded):
        wait(star[1])


def test_first_rank_that_ends_halfway_through_a_message_is_noticed(star):
    star[0].peers[0].sendall(b"\x10" + b"\0" * 7 + b"half")
    star[0].close()
    with pytest.raises(LeaderEnded):
        star[1].spread(b"")


def test_more_ranks_connect_at_once_than_the_system_lets_wait():
    server, address = node_channel.listen(1)
    with server, ThreadPoolExecutor(9) as threads:
        waiting = [threads.submit(node_channel.connect, address) for _ in range(9)]
        while sum(each.done() for each in waiting) < 2:  # the queue is full
            time.sleep(0.01)
        found = node_channel.accept(server, 9)
        others = [each.result() for each in waiting]
    assert all(others)
    for each in (*found, *others):
        each.close()
