"""Nodes made of network namespaces on one machine: their ranks share no memory with those of others."""

import ctypes
import os
import unittest
from contextlib import contextmanager

from psframe.cluster import nodes
from psframe.cluster.joining import join
from tests.ranks.harness import is_virtual

CLONE_NEWNET = 0x40000000
#: shapes of tensors: with buckets of 680 bytes, the last tensor is none
UNEVEN = [(40, 300), (8, 9), (2, 3, 5, 5)]


@contextmanager
def own_network(world, color, folder="/no/such/folder"):
    """Put the ranks of a color into a network namespace of their own, where abstract sockets of others do not reach.

    ``folder``: where ranks look for sockets of those that they share files with.
    """
    if is_virtual(world):
        with _own_node(world, color):
            yield
        return
    before, nodes.FOLDER = nodes.FOLDER, folder
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
        nodes.FOLDER = before
        libc.setns(home, CLONE_NEWNET)
        os.close(home)


@contextmanager
def _own_node(world, color):
    """Put a virtual rank on another node."""
    nodes_of, me = world.job.node_of, world.numbers[world.rank]
    before, nodes_of[me] = nodes_of[me], color
    world.Barrier()
    try:
        yield
    finally:
        nodes_of[me] = before


def apart(world, n_nodes):
    """Join with the ranks dealt to so many nodes."""
    with own_network(world, world.rank % n_nodes):
        cluster = join(world)
    assert cluster.n_nodes == n_nodes
    return cluster
