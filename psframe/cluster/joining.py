"""Discovery of a job's ranks and nodes (:func:`join`), by proof of shared memory."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.cluster import communicators, gates, node_gather, startup, stop_flag
from psframe.cluster.cluster import Cluster
from psframe.cluster.deadline import DeadlineWaiter
from psframe.cluster.gates import Rendezvous
from psframe.cluster.heartbeat import Pulse
from psframe.cluster.node_gather import Board
from psframe.cluster.nodes import prove, split_by_kernel
from psframe.cluster.stop_flag import StopFlag


@dataclass(frozen=True)
class Site:
    """The ranks that share memory with this one, and their memory.

    Attributes
    ----------
    near : MPI.Comm
        These ranks.
    link : Link
    control : ndarray of uint8, shape (control_bytes,)
        Shared memory of their gates, and of what lies behind them.
    meet : callable
        ``meet(me, members)`` returns the Rendezvous in that memory.
    waiter : callable
        Makes the DeadlineWaiter.
    host : str
    has_one_clock, outlives, checks_memory : bool
        As of Cluster.
    """

    near: Any
    link: Any
    control: np.ndarray
    meet: Callable[[int, Sequence[int]], Rendezvous]
    waiter: Callable[..., DeadlineWaiter]
    host: str
    has_one_clock: bool = False
    outlives: bool = False
    checks_memory: bool = True


def join(world: Any = None) -> Cluster:
    """Find the nodes, and number the ranks node by node. All ranks must call.

    A communicator with a method ``site`` says itself which of its ranks share memory.
    """
    world = communicators.keep(MPI.COMM_WORLD if world is None else world)
    site: Site = getattr(world, "site", partial(_proven, world))()
    near, control = site.near, site.control
    first = near.bcast(world.rank)
    by_rank = world.allgather((first, site.host))
    first_of_rank, names = [of_rank for of_rank, _ in by_rank], dict(by_rank)
    firsts = sorted(names)
    node, hosts = firsts.index(first), tuple(names[rank] for rank in firsts)
    comm = communicators.keep(world.Split(0, key=node * world.size + near.rank))
    lane = communicators.keep(comm.Split(near.rank, key=node))
    rendezvous = site.meet(near.rank, near.allgather(comm.rank))
    after_gates = control[gates.size(near.size) :]
    after_halt = after_gates[stop_flag.N_BYTES :]
    sizes = tuple(map(first_of_rank.count, firsts))
    pulse = Pulse(after_halt[node_gather.size(near.size) :], near.size, near.rank)
    of_lane = [number for number, n in enumerate(sizes) if n > near.rank]
    patience = site.waiter(rendezvous, pulse, lane, of_lane, hosts)
    near.Barrier()  # every rank holds its lock before another checks it
    return Cluster(
        world=world,
        comm=comm,
        link=site.link,
        node=node,
        node_rank=near.rank,
        n_nodes=len(firsts),
        lane=lane,
        hosts=hosts,
        rendezvous=rendezvous,
        board=Board(after_halt, rendezvous),
        halt=StopFlag(after_gates[: stop_flag.N_BYTES], lane if near.rank == 0 else MPI.COMM_NULL, patience),
        sizes=sizes,
        pulse=pulse,
        patience=patience,
        has_one_clock=site.has_one_clock,
        outlives=site.outlives,
        checks_memory=site.checks_memory,
    )


def _proven(world: MPI.Comm) -> Site:
    near, link, control, fd = prove(split_by_kernel(world))
    meet, host = partial(Rendezvous, control, fd), socket.gethostname()
    return Site(near, link, control, meet, DeadlineWaiter, host, outlives=startup.tolerant())
