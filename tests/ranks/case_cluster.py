"""Nodes, links and agreement."""

import os
import pickle
from time import perf_counter
from unittest import mock

from psframe.cluster import nodes
from psframe.cluster.cluster import AgreedError
from psframe.cluster.joining import join
from psframe.cluster.roles import Team
from psframe.errors import UserError
from tests.ranks.harness import ranks
from tests.ranks.nodes import apart, own_network
from tests.ranks.training import folder


@ranks(1, 2, 3, 4, 7)
def machine_is_one_node(world):
    cluster = join()
    assert (cluster.n_nodes, cluster.node, cluster.node_rank) == (1, 0, world.rank)
    assert cluster.rank == world.rank
    assert cluster.clock_offset_s == 0.0


@ranks(2, 4)
def memory_is_shared(world):
    cluster = join()
    memory = cluster.link.share(1 << 20)
    assert len(memory) == 1 << 20
    assert not memory.any()
    world.Barrier()
    memory[world.rank] = world.rank + 1
    world.Barrier()
    assert memory[: world.size].tolist() == list(range(1, world.size + 1))


@ranks(2, 4)
def large_message_reaches_every_rank(world):
    cluster = join()
    message = cluster.link.tell(["x" * 5_000_000] if cluster.link.leads else None)
    assert message == ["x" * 5_000_000]


@ranks(3)
def memory_that_is_not_there_is_an_error_on_every_rank(world):
    cluster = join()
    try:
        cluster.link.share(1 << 55)
    except OSError as error:
        assert error.strerror
    else:
        raise AssertionError("an impossible size was shared")
    assert cluster.link.tell("still there" if cluster.link.leads else None) == "still there"


@ranks(2, 4, 7)
def ranks_out_of_reach_are_nodes_of_their_own(world):
    with own_network(world, world.rank % 2):
        cluster = join()
    assert cluster.n_nodes == 2
    assert (cluster.node, cluster.node_rank) == (world.rank % 2, world.rank // 2)
    evens = (world.size + 1) // 2
    assert cluster.rank == cluster.node_rank + evens * cluster.node  # numbered node by node
    assert cluster.run_on_nodes(lambda: cluster.node) == cluster.node


def object_of(rank):
    """Return an object that JSON has not, longer than what a socket holds, and of another length on each rank."""
    return rank, {rank}, "x" * (400_000 + rank)


@ranks(2, 4, 7)
def objects_are_gathered_in_the_order_of_the_ranks(world):
    for n_nodes in (1, 2, world.size):
        cluster = apart(world, n_nodes)
        mine, expected = object_of(cluster.rank), [object_of(rank) for rank in range(world.size)]
        for gather in (cluster.gather, cluster.gather_in_time):
            assert gather(mine) == (expected if cluster.rank == 0 else None)
        assert cluster.allgather(mine) == expected
        assert list(map(pickle.loads, cluster.allgather_in_time(pickle.dumps(mine)))) == expected
        assert cluster.bcast(mine) == expected[0]


@ranks(2, 4, 7)
def clocks_of_nodes_are_compared(world):
    """One machine has one clock; here that of the second node is made to be ahead."""
    cluster = apart(world, 2)
    ahead_s = 1000.0 * cluster.node
    with mock.patch("psframe.cluster.cluster.perf_counter", lambda: perf_counter() + ahead_s):
        began = perf_counter()
        offset_s, took_s = cluster.clock_offset_s, perf_counter() - began
    # it is known to half a message's way there and back
    found = world.allgather((offset_s + ahead_s, took_s))
    assert max(abs(wrong_s) for wrong_s, _ in found) <= max(took_s for _, took_s in found), found


@ranks(2, 4, 7)
def ranks_with_own_networks_meet_in_a_shared_folder(world):
    before = set(os.listdir("/dev/shm"))
    with own_network(world, world.rank % 2, "/dev/shm"):
        found = join()
    assert (found.n_nodes, found.node_rank) == (1, world.rank)
    memory = found.link.share(100)
    memory[world.rank] = 1
    found.barrier()
    assert memory.sum() == world.size
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("psframe")]


@ranks(2, 4, 7)
def ranks_under_one_kernel_alone_may_be_a_node(world):
    before = nodes.BOOT_ID
    try:
        with folder(world) as where:
            nodes.BOOT_ID = where / f"boot_id.{world.rank}"
            nodes.BOOT_ID.write_text(f"kernel {world.rank % 2}\n")
            assert (join().n_nodes, join().node) == (2, world.rank % 2)
            world.Barrier()
            if world.rank == 1:
                nodes.BOOT_ID.unlink()
            assert join().n_nodes == 1  # MPI is believed
    finally:
        nodes.BOOT_ID = before


@ranks(1, 2, 3, 4, 7)
def verdict_is_that_of_every_rank(world):
    cluster = join()
    assert cluster.run_on_root(lambda: {"a": [1, None]}) == {"a": [1, None]}
    assert cluster.run_on_all(lambda: world.rank) == world.rank

    def fail():
        raise UserError(f"no {world.rank}")

    last = world.size - 1
    for agree, check, message in (
        (cluster.run_on_root, fail, "no 0"),
        (cluster.run_on_nodes, fail, "no 0"),
        (cluster.run_on_all, lambda: fail() if world.rank == last else None, f"no {last}"),
    ):
        try:
            agree(check)
        except AgreedError as error:
            assert str(error) == message
        else:
            raise AssertionError("a verdict was not heard")


@ranks(1, 3)
def roles_of_a_team(world):
    dedicated, colocated, none = (
        Team((world.size,), server, comm=world) for server in ("dedicated", "colocated", None)
    )
    if world.size > 1:
        assert dedicated.n_workers == world.size - 1
        assert dedicated.worker == (world.rank - 1 if world.rank else None)
    assert colocated.n_workers == none.n_workers == world.size
    assert colocated.worker == none.worker == world.rank
    assert none.applies_updates
    assert colocated.applies_updates == dedicated.applies_updates == (world.rank == 0)
