"""The scheduler runs one rank at a time, in an order that it can repeat; a communicator does as MPI does."""

import numpy as np
import pytest
from mpi4py import MPI

from psframe.cluster.gates import PeerLost
from psframe.virtual.orders import AtRandom, ByTime, schedules
from psframe.virtual.scheduler import Deadlock, Scheduler
from tests.helpers.virtual import on_ranks


def run(n, body, order=None):
    return on_ranks(n, body, order or ByTime())[0]


def test_ranks_go_on_by_their_time():
    ranks, told = Scheduler(3, ByTime()), []

    def body(number):
        for _ in range(3):
            ranks.sleep(number + 1.0)
            told.append((ranks.now_s, number))

    ranks.run(body)
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert [rank.at_s for rank in ranks.ranks] == [3.0, 6.0, 9.0]


def test_same_seed_gives_the_same_order():
    def order(seed):
        ranks, told = Scheduler(4, AtRandom(seed)), []
        ranks.run(lambda number: [(ranks.point(), told.append(number)) for _ in range(20)])
        return told

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(6)}) == 6


def test_all_orders_with_one_preemption_are_tried():
    seen = set()
    for order in schedules(1):
        ranks, told = Scheduler(2, order), []

        def body(number, ranks=ranks, told=told, order=order):
            with order.counting():
                for _ in range(2):
                    ranks.point()
                    told.append(number)

        ranks.run(body)
        seen.add(tuple(told))
    assert {(0, 0, 1, 1), (0, 1, 1, 0), (1, 1, 0, 0)} <= seen


def test_ranks_that_wait_for_each_other_are_told():
    with pytest.raises(Deadlock, match=r"rank 0 for .* rank 1 for"):
        run(2, lambda comm: comm.recv(1 - comm.rank))


def test_error_of_a_rank_ends_all():
    def body(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("a defect")
        comm.Barrier()

    with pytest.raises(ZeroDivisionError, match="a defect"):
        run(3, body)


def test_rank_that_was_killed_is_missed_by_those_who_need_it():
    def body(comm):
        try:
            for _ in range(10):
                comm.allgather(comm.rank)
        except PeerLost as lost:
            return lost.ranks

    found, ranks = on_ranks(3, body, ByTime(), kills={2: 4})
    assert found == [(2,), (2,), None]
    assert not ranks.ranks[2].lives


@pytest.mark.parametrize("seed", range(4))
def test_collectives_do_as_in_mpi(seed):
    def body(comm):
        n, me = comm.size, comm.rank
        numbers = np.arange(3, dtype=np.float32) + me
        total = np.zeros(3, np.float32)
        comm.Allreduce(numbers, total)
        assert total.tolist() == [sum(range(n)) + n * i for i in range(3)]
        comm.Bcast(numbers, 1)
        assert numbers.tolist() == [1, 2, 3]
        own, counts = np.full(me + 1, me, np.float32), [rank + 1 for rank in range(n)]
        every = np.zeros(sum(counts), np.float32)
        comm.Gatherv(own, [every, counts, MPI.FLOAT] if me == 0 else None)
        expected = np.repeat(np.arange(n), counts)
        assert me or every.tolist() == expected.tolist()
        comm.Allgatherv(own, [every, counts, MPI.FLOAT])
        assert every.tolist() == expected.tolist()
        sent, received = np.arange(n, dtype=np.float32) + 10 * me, np.zeros(n, np.float32)
        comm.Alltoallv([sent, [1] * n, MPI.FLOAT], [received, [1] * n, MPI.FLOAT])
        assert received.tolist() == [10 * rank + me for rank in range(n)]
        assert comm.bcast({"of": me}, root=2) == {"of": 2}
        assert comm.gather(me) == (list(range(n)) if me == 0 else None)
        part = comm.Split(me % 2 if me < 3 else MPI.UNDEFINED, -me)
        assert part == MPI.COMM_NULL if me == 3 else part.allgather(me) == [2, 0] if me % 2 == 0 else [1]
        return comm.allreduce(me)

    assert run(4, body, AtRandom(seed)) == [6] * 4


@pytest.mark.parametrize("seed", range(4))
def test_messages_come_in_order_from_each_rank(seed):
    def body(comm):
        if comm.rank:
            for number in range(3):
                comm.Send(np.float32([comm.rank, number]), 0, tag=5)
            return None
        got, status = [], MPI.Status()
        for _ in range(6):
            message = np.zeros(2, np.float32)
            comm.Recv(message, MPI.ANY_SOURCE, 5, status)
            assert status.Get_source() == message[0]
            got.append(tuple(message))
        return got

    got = run(3, body, AtRandom(seed))[0]
    assert [n for rank, n in got if rank == 1] == [n for rank, n in got if rank == 2] == [0, 1, 2]


def test_windows_are_one_memory():
    def body(comm):
        window = comm.window(np.zeros(4 if comm.rank == 0 else 0, np.float32))
        comm.Barrier()
        window.Accumulate(np.full(2, comm.rank + 1, np.float32), 0, 1, MPI.SUM)
        comm.Barrier()
        out = np.zeros(4, np.float32)
        window.Get(out, 0)
        return out.tolist()

    assert run(3, body, AtRandom(1)) == [[0, 6, 6, 0]] * 3
