"""Ranks of a job, of which some train and the others wait as spares (:class:`Pool`)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.cluster import Cluster
from psframe.cluster.flight.recorder import follow
from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.cluster.node_channel import LeaderEnded
from psframe.record.clock import CLOCK
from psframe.record.flight import SPARE, phase

CALL = 0x5F02  # MPI tag of rank 0's messages to the other nodes
LOOK_S = 0.02  # seconds between two looks of a node without ranks that train: MPI has no wait that does not spin


#: exceptions in a rank when another one is lost
LOSSES = (PeerLost, LeaderEnded, MPI.Exception)


class StateLost(PeerLost):
    """No rank is left that has the parameters and the optimizer's state."""


def is_loss(lost: BaseException) -> bool:
    """Return True if one of LOSSES tells of the death of a rank, not of one that is stuck."""
    return lost.dead if isinstance(lost, PeerLost) else isinstance(lost, LeaderEnded) or communicators.is_loss(lost)


class Pool:
    """All ranks of a job, and which of them train: the members.

    Parameters
    ----------
    cluster : Cluster
        All ranks of the job; at first all are members.
    survives : bool
        True if the others go on without a rank that died.

    Attributes
    ----------
    members : tuple of int
        Numbers in ``cluster`` of the ranks that train, ascending; rank 0 is always one.
    wanted : int
        Number of members that was asked for last; there may be fewer after losses.
    leaves : callable
        Asks that this rank may leave; returns False if that is in vain.
    drained : set of str or int
        Hosts whose ranks do not come back, and such ranks by their numbers at the start.
    shrinks : bool
        False where open windows of MPI, which do not outlive a rank, rule out a smaller job.
    ended : dict or None
        Rank 0's last message, once this rank has it.
    """

    def __init__(self, cluster: Cluster, survives: bool = False):
        self.cluster, self.survives, self.members = cluster, survives, tuple(range(cluster.n_ranks))
        self._clusters = [cluster]  # in which this rank may wait: of all, and of the members if it is one
        self._world, self._number = cluster.world, 0  # of this cluster, counted by all ranks together
        self.wanted, self.drained = cluster.n_ranks, set[str | int]()
        self.leaves: Callable[[], bool] = lambda: False
        self.shrinks = True
        self.ended: dict[str, Any] | None = None
        self.n_kept, self.first = communicators.n_kept(), communicators.numbers(cluster.comm)

    @property
    def has_spares(self) -> bool:
        return len(self.members) < self.cluster.n_ranks

    @property
    def number(self) -> int:
        """Number of this rank at the start of the job."""
        return communicators.numbers(self.cluster.comm)[self.cluster.rank]

    @property
    def node_of_rank(self) -> list[int]:
        """Node of each rank of the job."""
        return [node for node, n in enumerate(self.cluster.sizes) for _ in range(n)]

    def sizes(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return the number of ``members`` on each node that has any."""
        nodes = [self.node_of_rank[member] for member in members]
        return tuple(nodes.count(node) for node in sorted(set(nodes)))

    def chosen(self, n: int | None, drain: Iterable[str | int] = ()) -> tuple[int, ...]:
        """Return the members that make ``n`` of the present ones: those with the lowest numbers stay, or come first.

        Those of ``drain``, and those drained before, are no members; ``n`` None: all others stay.
        """
        away, hosts = self.drained.union(drain), self.cluster.hosts
        numbers = communicators.numbers(self.cluster.comm)
        places = enumerate(zip(self.node_of_rank, numbers, strict=True))
        fit = [rank for rank, (node, number) in places if away.isdisjoint((hosts[node], number))]
        present = [rank for rank in fit if rank in self.members]
        spares = [rank for rank in fit if rank not in self.members]
        return tuple(sorted([*present, *spares][: len(present) if n is None else n]))

    def hear(self, message: Any = None, last: bool = False) -> Any:
        """Return rank 0's ``message`` (plain values) on every rank. All ranks of the job must call: spares wait here.

        ``last``: one that died need not have it. Raises LeaderEnded, PeerLost or MPI.Exception if a rank has ended.
        """
        with phase(SPARE):
            return self._hear(message, last)

    def _hear(self, message: Any, last: bool) -> Any:
        cluster = self.cluster
        if cluster.leaders != MPI.COMM_NULL and cluster.rank == 0:
            for node in range(1, cluster.n_nodes):
                with suppress(*((MPI.Exception,) if last else ())):
                    cluster.leaders.send(message, node, CALL)
        elif cluster.leaders != MPI.COMM_NULL:
            while not cluster.leaders.Iprobe(0, CALL):
                CLOCK.sleep(LOOK_S)
            message = cluster.leaders.recv(source=0, tag=CALL)
        if last and cluster.link.leads:
            cluster.link.call(message)
            return message
        return cluster.link.tell(message)

    def survive(self, holds: bool) -> list[int]:
        """Form a smaller job of the ranks that are left; those of them that are members, as rank 0 sees it, still are.

        All that are left must call, spares too. What they do next is what rank 0 then tells them (:meth:`hear`). Where
        one of them has its last message, the job has ``ended``, and they do nothing more.

        Parameters
        ----------
        holds : bool
            True if this rank has the run's state. When rank 0 has died, the first one that has it is rank 0.

        Returns
        -------
        list of int
            Numbers in the smaller job of the ranks that have it.

        Raises
        ------
        StateLost
            On every rank, if none is left that has it.
        """
        old = self.cluster
        left, heirs, number = self._shrunk(holds)
        if self.ended:
            return []
        if not heirs:
            raise StateLost(
                "rank 0 has died, which keeps the parameters and writes the checkpoints; the others cannot go on "
                "without it",
                (0,),
                left.rank == 0,
            )
        first = heirs[0]
        new = join(left if first == 0 else communicators.keep(left.Split(0, (left.rank != first) * (left.rank + 1))))
        communicators.survived(new.rank == 0, new.n_nodes < old.n_nodes)
        before, after = communicators.numbers(old.comm), communicators.numbers(new.comm)
        members = sorted(after.index(before[member]) for member in self.members if before[member] in after)
        # a rank may have died in a change of which some know, and others do not
        members, self.wanted, drained = new.bcast((members, self.wanted, self.drained))
        self.members, self.drained = tuple(members), set(drained)
        self.cluster, self._clusters, self.n_kept = new, [new], communicators.n_kept()
        self._number = number
        # the deadline holds for those that are left, who are told of by the numbers that the user has seen
        new.rendezvous.deadline_s = old.rendezvous.deadline_s
        new.rendezvous.renamed = {rank: self.first.index(number) for rank, number in enumerate(after)}
        follow(new)
        return [rank for rank, has in enumerate(new.allgather(holds)) if has]

    def _shrunk(self, holds: bool = False) -> tuple[Any, list[int], int]:
        """Return the communicator of the ranks that are left, those of them that hold, and the next cluster's number.

        The first one that holds leads.

        All that are left must call (Shrink: User-Level Failure Mitigation, Bland et al. 2013). Where one of them has
        rank 0's last message, none returns before all have it.

        They shrink the job's first communicator: when a rank dies while a smaller job is formed, some have that, and
        others do not. Then those that have it know who leads.
        """
        old = self.cluster
        communicators.revoke()
        for cluster in self._clusters:
            cluster.rendezvous.gates.tell()
        old.link.call_off()
        for cluster in self._clusters:
            cluster.close()
        left = communicators.keep(self._world.Shrink())
        told = left.allgather((self._number, holds, old.rank, self.ended))
        self.ended = next((ended for *_, ended in told if ended), None)
        if self.ended:
            left.Barrier()
        heirs = sorted((-number, place, rank) for rank, (number, has, place, _) in enumerate(told) if has)
        return left, [rank for *_, rank in heirs], 1 + max(number for number, *_ in told)

    def leave(self, message: dict[str, Any], heard: bool = False) -> None:
        """Tell the spares rank 0's last ``message``, and wait for all ranks. All of the job must call, once.

        Where a rank dies meanwhile, and the others survive, they hear of the end from each other: a rank may have
        missed it, and would go on alone.

        Parameters
        ----------
        heard : bool
            True if this rank has the message.
        """
        self.ended = message
        try:
            if not heard:
                self.hear(message, last=True)
            self.cluster.barrier()
        except LOSSES as lost:
            self._part(lost)

    def _part(self, lost: BaseException) -> None:
        """End the job after a loss at its end, with all that are left; raise ``lost`` if they do not survive it."""
        while self.survives and is_loss(lost):
            try:
                if self.shrinks:
                    self._shrunk()
                else:
                    communicators.revoke()  # MPI's own end would wait for the one that died
                return
            except LOSSES as next_loss:
                lost = next_loss
        raise lost

    def change(self, members: Sequence[int], drained: Iterable[str | int]) -> Cluster | None:
        """Change the members as was asked for; return as :meth:`divide`. All ranks of the job must call."""
        self.wanted = len(members)
        self.drained.update(drained)
        return self.divide(members)

    def divide(self, members: Sequence[int]) -> Cluster | None:
        """Return the cluster of the new members, on these, and None elsewhere. All ranks of the job must call.

        What the members before have made with MPI since the pool was made is freed.
        """
        communicators.free_after(self.n_kept)
        self.members, is_member = tuple(members), self.cluster.rank in members
        self._clusters = [self.cluster]
        if not self.has_spares:
            return self.cluster
        comm = self.cluster.comm.Split(0 if is_member else MPI.UNDEFINED, key=self.cluster.rank)
        if not is_member:
            return None
        active = join(comm)
        # a lost rank is named by its number in the job
        active.rendezvous.members = tuple(self.members[member] for member in active.rendezvous.members)
        active.rendezvous.renamed = self.cluster.rendezvous.renamed
        self._clusters.append(active)
        return active
