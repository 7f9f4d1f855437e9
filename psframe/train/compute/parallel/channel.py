"""Channels between neighbouring stages (:class:`Near`, :class:`Far`): activations forward, their gradients back.

Inside a node, both ranks share the slots: the sender copies to a slot, the receiver computes in it, and both wait on
counters in the kernel. Between nodes, MPI copies from the sender's slot to the receiver's.
"""

from math import prod
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psframe.cluster.cluster import Cluster
from psframe.cluster.counters import NodeCounters
from psframe.memory.allocator import Allocator, shared_block
from psframe.nn.base import Shape
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic

SENT, FREED = 0, 1
LINE_BYTES = 64  # before the data of a slot: a cache line, whose first bytes encode the order of the axes in memory


class Slots:
    """Slots for ``depth`` arrays (n, *shape) of up to ``most`` samples, with ``shape`` in any memory order.

    PyTorch's kernels use the memory order of their input for their output, and their rounding depends on it.
    """

    def __init__(self, memory: np.ndarray, depth: int, most: int, shape: Shape, dtype: str):
        n_bytes = slot_bytes(most, shape, dtype)
        self.rows = memory.view(np.uint8)[: depth * n_bytes].reshape(depth, n_bytes)
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.plain = np.arange(len(shape), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def write(self, place: int, array: np.ndarray) -> np.ndarray:
        """Write an array to a slot; return the used bytes of the slot, with its head."""
        row = self.taken(place, len(array))
        order = self.plain
        if not array.flags.c_contiguous:
            order = np.argsort([-stride for stride in array.strides[1:]], kind="stable").astype(np.uint8)
        row[: len(order)] = order
        np.copyto(self.read(place, len(array)), array)
        return row

    def taken(self, place: int, n: int) -> np.ndarray:
        """Return the bytes of a slot that ``n`` samples use, with its head."""
        return self.rows[place % len(self.rows), : LINE_BYTES + n * prod(self.shape) * self.dtype.itemsize]

    def read(self, place: int, n: int) -> np.ndarray:
        """Return the array (n, *shape) in a slot, as a view with the memory order it was written in."""
        row = self.taken(place, n)
        order, numbers = row[: len(self.shape)], row[LINE_BYTES:].view(self.dtype)
        if (order == self.plain).all():
            return numbers.reshape(n, *self.shape)
        stored = numbers.reshape(n, *[self.shape[axis] for axis in order])
        return stored.transpose(0, *(1 + np.argsort(order)))


def slot_bytes(most: int, shape: Shape, dtype: str) -> int:
    """Return the bytes of a slot, a multiple of a cache line."""
    return -(-(LINE_BYTES + most * prod(shape) * np.dtype(dtype).itemsize) // LINE_BYTES) * LINE_BYTES


class Channel(Protocol):
    """One direction between two ranks, for arrays (n, *shape) of up to ``most`` samples, ``depth`` at a time.

    Attributes
    ----------
    traffic : Traffic
    waited_s : float
        Seconds that this rank has waited for the other one; reset by the owner.
    """

    traffic: Traffic
    waited_s: float

    def send(self, array: np.ndarray) -> None:
        """Send an array, which may be overwritten afterwards; waits while all slots are in use."""

    def receive(self, n: int) -> np.ndarray:
        """Wait for the next array (n, *shape), and return it; it is valid until :meth:`free`."""

    def free(self) -> None:
        """Release the oldest received slot."""


class Near:
    """Channel inside a node. All ranks of the node must construct it, in the same order, as its memory is shared.

    Parameters
    ----------
    cluster : Cluster
    sends : bool or None
        True if this rank sends, False if it receives, None if neither.
    """

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        sends: bool | None,
        depth: int,
        most: int,
        shape: Shape,
        dtype: str = "float32",
    ):
        counters_bytes = NodeCounters.n_bytes(2)
        # the receiver computes in it, so its pages belong there
        n_bytes = counters_bytes + depth * slot_bytes(most, shape, dtype)
        memory = shared_block(allocator, n_bytes, "exchange", sends is False)
        self.traffic, self.waited_s = Traffic(), 0.0
        if sends is None:
            return
        self.counters = NodeCounters(memory, 2, cluster.rendezvous)
        self.slots = Slots(memory[counters_bytes:], depth, most, shape, dtype)
        self.n_sent = self.n_received = self.n_freed = 0

    def _until(self, counter: int, value: int) -> None:
        began = CLOCK.now()
        self.counters.until(counter, value)
        self.waited_s += CLOCK.now() - began

    def send(self, array: np.ndarray) -> None:
        if self.n_sent >= len(self.slots):
            self._until(FREED, self.n_sent - len(self.slots) + 1)
        self.slots.write(self.n_sent, array)
        self.traffic.sum(array.nbytes, 1)
        self.n_sent += 1
        self.counters.add(SENT)

    def receive(self, n: int) -> np.ndarray:
        self._until(SENT, self.n_received + 1)
        self.n_received += 1
        return self.slots.read(self.n_received - 1, n)

    def free(self) -> None:
        self.n_freed += 1
        self.counters.add(FREED)


class Far:
    """Channel between two nodes, over MPI.

    Parameters
    ----------
    cluster : Cluster
    peer : (int, int)
        Other rank, and its node.
    tag : int
        MPI tag, unique among the channels of the two ranks.
    """

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        peer: tuple[int, int],
        tag: int,
        depth: int,
        most: int,
        shape: Shape,
        dtype: str = "float32",
    ):
        self.cluster, (self.peer, self.node), self.tag = cluster, peer, tag
        memory = allocator.zeros(depth * slot_bytes(most, shape, dtype), np.uint8, "exchange")
        self.slots = Slots(memory, depth, most, shape, dtype)
        self.requests: list[Any] = [MPI.REQUEST_NULL] * depth
        self.traffic, self.waited_s, self.count = Traffic(), 0.0, 0

    def _until(self, request: Any) -> None:
        began = CLOCK.now()
        if not request.Test():
            self.cluster.patience.wait(request, [self.node])
        self.waited_s += CLOCK.now() - began

    def send(self, array: np.ndarray) -> None:
        place = self.count % len(self.slots)
        self._until(self.requests[place])
        slot = self.slots.write(place, array)
        self.requests[place] = self.cluster.comm.Isend(slot, self.peer, self.tag)
        self.traffic.send(array.nbytes)
        self.count += 1

    def receive(self, n: int) -> np.ndarray:
        slot = self.slots.taken(self.count, n)
        self._until(self.cluster.comm.Irecv(slot, self.peer, self.tag))
        self.traffic.receive(slot.nbytes)
        self.count += 1
        return self.slots.read(self.count - 1, n)

    def free(self) -> None:
        """Do nothing: at most as many micro-batches are in flight as there are slots."""
