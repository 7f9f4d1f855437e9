"""Nodes, links and agreement."""

import ctypes
import os
import unittest
from contextlib import contextmanager

from psframe import kernel, proof
from psframe.cluster import AgreedError, join
from psframe.errors import UserError
from psframe.team import Team
from tests.ranks.harness import ranks
from tests.ranks.training import folder

CLONE_NEWNET = 0x40000000


@ranks(1, 2, 3, 4, 7)
def one_machine_is_one_node(world):
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
def a_large_message_reaches_every_rank(world):
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


@contextmanager
def own_network(world, color, folder="/no/such/folder"):
    """Put the ranks of a color into a network namespace of their own, where abstract sockets of others do not reach.

    ``folder``: where ranks look for sockets of those that they share files with.
    """
    before, proof.FOLDER = proof.FOLDER, folder
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    group = world.Split(color, key=world.rank)
    allowed = group.rank > 0 or libc.unshare(CLONE_NEWNET) == 0
    pid = group.bcast(os.getpid())
    try:
        if all(world.allgather(allowed)):
            there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            os.close(there)
            yield
        else:
            raise unittest.SkipTest("a network namespace needs CAP_SYS_ADMIN, which this user has not")
    finally:
        proof.FOLDER = before
        libc.setns(home, CLONE_NEWNET)
        os.close(home)


@ranks(2, 4, 7)
def ranks_that_cannot_reach_each_other_are_nodes_of_their_own(world):
    with own_network(world, world.rank % 2):
        cluster = join()
    assert cluster.n_nodes == 2
    assert (cluster.node, cluster.node_rank) == (world.rank % 2, world.rank // 2)
    evens = (world.size + 1) // 2
    assert cluster.rank == cluster.node_rank + evens * cluster.node  # numbered node by node
    assert abs(cluster.clock_offset_s) < 0.05  # one machine has one clock
    assert cluster.agree_by_node(lambda: cluster.node) == cluster.node


@ranks(2, 4, 7)
def ranks_with_networks_of_their_own_find_each_other_through_a_folder_that_they_share(world):
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
def only_ranks_under_one_kernel_may_be_a_node(world):
    before = kernel.BOOT_ID
    try:
        with folder(world) as where:
            kernel.BOOT_ID = where / f"boot_id.{world.rank}"
            kernel.BOOT_ID.write_text(f"kernel {world.rank % 2}\n")
            assert (join().n_nodes, join().node) == (2, world.rank % 2)
            world.Barrier()
            if world.rank == 1:
                kernel.BOOT_ID.unlink()
            assert join().n_nodes == 1  # MPI is believed
    finally:
        kernel.BOOT_ID = before


@ranks(1, 2, 3, 4, 7)
def a_verdict_is_every_ranks(world):
    cluster = join()
    assert cluster.agree(lambda: {"a": [1, None]}) == {"a": [1, None]}
    assert cluster.agree_everywhere(lambda: world.rank) == world.rank

    def fail():
        raise UserError(f"no {world.rank}")

    last = world.size - 1
    for agree, judge, message in (
        (cluster.agree, fail, "no 0"),
        (cluster.agree_by_node, fail, "no 0"),
        (cluster.agree_everywhere, lambda: fail() if world.rank == last else None, f"no {last}"),
    ):
        try:
            agree(judge)
        except AgreedError as error:
            assert str(error) == message
        else:
            raise AssertionError("a verdict was not heard")


@ranks(1, 3)
def roles(world):
    dedicated, colocated, none = (Team(world, server) for server in ("dedicated", "colocated", None))
    if world.size > 1:
        assert dedicated.n_workers == world.size - 1
        assert dedicated.worker == (world.rank - 1 if world.rank else None)
    assert colocated.n_workers == none.n_workers == world.size
    assert colocated.worker == none.worker == world.rank
    assert none.applies
    assert colocated.applies == dedicated.applies == (world.rank == 0)
