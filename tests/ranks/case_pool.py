"""Members and spares of a job: who trains, what all hear, and requests to change it."""

from itertools import accumulate

from psframe.cluster import communicators
from psframe.cluster.joining import join
from psframe.cluster.pool import Pool
from psframe.errors import UserError
from psframe.record import scaling
from psframe.train.elastic.scaling import Scaling
from tests.helpers.suite import IS_FULL
from tests.ranks.harness import ranks
from tests.ranks.nodes import apart
from tests.ranks.training import folder


@ranks(2, 4, 7)
def message_of_the_first_rank_reaches_members_and_spares(world):
    for n_nodes in (1, 2, world.size):
        pool = Pool(apart(world, n_nodes))
        for number in range(3):
            assert pool.hear({"number": number} if pool.cluster.rank == 0 else None) == {"number": number}


@ranks(2, 3, 4, 7)
def members_are_the_lowest_numbers_and_the_others_have_no_cluster(world):
    pool = Pool(join(world))
    for n in (1, world.size, 2, world.size - 1 or 1):
        members = pool.chosen(n)
        assert members == tuple(range(n))
        active = pool.change(members, [])
        assert pool.has_spares == (n < world.size)
        assert (active is not None) == (world.rank < n)
        if active:
            assert (active.rank, active.n_ranks) == (world.rank, n)
            assert active.rendezvous.members == members
            assert active.allgather(world.rank) == list(members)
            if active is not pool.cluster:
                active.close()
    pool.hear()


@ranks(4, 7)
def members_that_are_present_stay_where_others_come(world):
    pool = Pool(join(world))
    pool.members = (0, 2)
    assert pool.chosen(1) == (0,)
    assert pool.chosen(3) == (0, 1, 2)
    assert pool.chosen(None) == (0, 2)


@ranks(4, 7)
def drained_hosts_are_left_out_from_then_on(world):
    pool = Pool(apart(world, 2))
    sizes = pool.cluster.sizes
    object.__setattr__(pool.cluster, "hosts", ("one", "two"))
    assert pool.node_of_rank == [0] * sizes[0] + [1] * sizes[1]
    assert pool.sizes(pool.members) == sizes
    assert pool.sizes(range(1, sizes[0] + 1)) == ((sizes[0] - 1, 1) if sizes[0] > 1 else (1,))
    assert pool.chosen(None, ["two"]) == tuple(range(sizes[0]))
    assert pool.chosen(world.size, ["one"]) == tuple(accumulate([sizes[0]] + [1] * (sizes[1] - 1)))
    pool.drained.add("two")
    assert pool.chosen(world.size) == tuple(range(sizes[0]))


@ranks(3)
def members_may_change_again_and_again(world):
    """MPICH has some two thousand communicators; none may stay."""
    pool = Pool(join(world))
    before = communicators.n_kept()
    for number in range(1000 if IS_FULL else 200):
        active = pool.change(range(1 + number % 2), [])
        if active and active is not pool.cluster:
            active.close()
    assert communicators.n_kept() <= before + 10


@ranks(2, 4)
def request_is_done_refused_or_answered_at_once(world):
    with folder(world) as run:
        pool = Pool(join(world))
        if pool.cluster.rank:
            return
        checked = []

        def check(sizes):
            checked.append(sizes)
            if sizes == (1,):
                raise UserError("too few")

        job = Scaling(run, pool, check)

        def outcome(*asked):
            request, job.looked = scaling.ask(run, *asked), 0.0
            assert scaling.answered(run, request) is None
            return job.due(), job.take(), scaling.answered(run, request)

        is_due, change, told = outcome(world.size, [])
        assert (is_due, change, told.error, told.now) == (False, None, "", world.size)
        is_due, change, told = outcome(1, [])
        assert (is_due, change, told.error) == (False, None, "too few")
        is_due, change, told = outcome(world.size + 1, [])
        assert not is_due
        assert "--to must be at most the ranks of the job" in told.error
        is_due, change, told = outcome(None, [pool.cluster.hosts[0]])
        assert not is_due
        assert "--drain must leave the host of rank 0" in told.error
        check = checked.append
        job.check = check
        is_due, change, told = outcome(world.size - 1, [])
        assert (is_due, change, told) == (True, {"members": list(range(world.size - 1)), "drained": []}, None)
        job.again()  # as a rank died before it was done
        job.looked = 0.0
        assert job.due()
        request = scaling.asked(run)
        assert job.take()
        assert not scaling.withdraw(run, request), "it is under way"
        job.done(1, {"before": world.size, "now": world.size - 1, "step": 7, "pause_s": 0.5})
        job.looked = 0.0
        assert not job.due()
        assert scaling.asked(run) is None
        told = scaling.answered(run, request)
        assert (told.now, told.epoch, told.step, told.pause_s) == (len(pool.members) - 1, 1, 7, 0.5)
        request, job.looked = scaling.ask(run, world.size - 1, []), 0.0
        assert job.due()
        assert scaling.withdraw(run, request)
        assert job.take() is None
        job.leaving[world.size - 1], job.looked = -1e9, 0.0  # asked to leave long ago
        assert job.due()
        assert job.take() == {"members": list(range(world.size - 1)), "drained": [world.size - 1]}, "it is not free"
        job.leaving.clear()
        request = scaling.ask(run, world.size, [])
        job.looked = 0.0
        assert not job.due()
        successor = Scaling(run, pool, check)  # of another rank 0
        successor.looked = 0.0
        assert not successor.due()
