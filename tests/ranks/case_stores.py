"""The contract of a store, over every store: what is pushed is counted once, what is pulled is whole, mail arrives."""

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.cluster.groups import divide
from psframe.cluster.joining import join
from psframe.cluster.roles import Team
from psframe.record.traffic import Traffic
from psframe.sync.stores import TABLE
from psframe.sync.stores.base import make
from psframe.sync.stores.shared import LOCKS, SharedStore
from psframe.train.assembly.allocate import build_measured
from tests.ranks.harness import ranks

SIZES = (1, 1000, 1 << 17)  # of one stripe, and of several
TIMES = 25


def opened(cluster, name, size, copies, traffic=None):
    team = Team(cluster.sizes, None, comm=cluster.comm, cluster=cluster)
    return filled(
        cluster,
        build_measured(cluster, lambda allocator: make(name, team, size, allocator, copies, traffic or Traffic())),
    )


def served(cluster, name, size, rows=1):
    """Return a team with a dedicated server, its store of two copies, and the store's mailbox."""
    team = Team(cluster.sizes, "dedicated", comm=cluster.comm, cluster=cluster)

    def both(allocator):
        store = make(name, team, size, allocator, 2, Traffic())
        return store, store.mailbox(rows)

    store, mailbox = build_measured(cluster, both)
    return team, filled(cluster, store), mailbox


def served_others(store):
    if store.progress:
        store.progress()


def filled(cluster, store):
    if cluster.rank == 0:
        store.params[0][:] = 1
    store.open()
    return store


@ranks(1, 2, 4, 7, 16)
def pushes_are_counted_once(world):
    """By ranks that push and pull at the same time, whole numbers, whose sum is exact."""
    cluster = join(world)
    for name in TABLE:
        for size in SIZES:
            traffic = Traffic()
            store = opened(cluster, name, size, 1, traffic)
            delta = np.full(size, world.rank + 1, np.float32) * (1 + np.arange(size, dtype=np.float32) % 3)
            out = np.empty(size, np.float32)
            for _ in range(TIMES):
                store.push(delta)
                store.pull(out)
                served_others(store)
            store.rest()
            clock = store.pull(out)
            each = TIMES * sum(range(1, world.size + 1))
            np.testing.assert_array_equal(out, 1 + each * (1 + np.arange(size, dtype=np.float32) % 3), err_msg=name)
            assert clock == TIMES * world.size
            store.rest()
            assert traffic.read == (3 * TIMES + 1) * out.nbytes  # a pull, a push and what it is added to
            store.close()


@ranks(1, 2, 4, 7)
def number_is_drawn_once(world):
    cluster = join(world)
    for name in TABLE:
        store = opened(cluster, name, 8, copies=1)
        for _ in range(2):
            mine = []
            for _ in range(TIMES):
                mine.append(store.tickets.next())
                served_others(store)
            store.rest()
            every = sorted(number for of_rank in world.allgather(mine) for number in of_rank)
            assert every == list(range(TIMES * world.size)), name
            store.rest()
        store.close()


@ranks(2, 3, 4, 7)
def pull_is_of_one_clock(world):
    """Rank 0 writes versions whose numbers are all the same; nobody sees half of one, or one older than it is told."""
    cluster = join(world)
    for name in TABLE:
        for size in SIZES:
            _, store, mailbox = served(cluster, name, size)
            if world.rank == 0:
                at_work, clock = world.size - 1, 0
                while at_work:
                    worker = mailbox.collect()
                    at_work -= int(mailbox.headers[worker, 4])
                    with store.writing:
                        store.params[(clock + 1) % 2][:] = clock + 2
                    clock += 1
                    mailbox.ack(worker)
            else:
                out, last = np.empty(size, np.float32), 0
                for time in range(TIMES):
                    clock = store.pull(out)
                    assert (out == out[0]).all(), f"{name}: a torn read"
                    assert out[0] == clock + 1, f"{name}: of another clock than it says"
                    assert clock >= last, f"{name}: time went back"
                    last = clock
                    mailbox.post((), 0, 0, 0, 0, float(time == TIMES - 1))
                mailbox.wait_ack()
            store.rest()
            assert store.pull(np.empty(size, np.float32)) == TIMES * (world.size - 1)
            store.rest()
            store.rest()
            store.close()


@ranks(2, 3, 4, full=True)
def pull_that_is_overtaken_is_still_whole(world):
    """Rank 0 commits all the time, unasked, while the others pull."""
    cluster, size = join(world), 1 << 19
    for name in TABLE:
        team, store, _ = served(cluster, name, size)
        done = cluster.link.share(64)
        if world.rank == 0:
            clock = 0
            while done[: world.size - 1].sum() < world.size - 1:
                with store.writing:
                    store.params[(clock + 1) % 2][:] = clock + 2
                clock += 1
        else:
            out = np.empty(size, np.float32)
            for _ in range(TIMES):
                clock = store.pull(out)
                assert (out == clock + 1).all(), f"{name}: a torn read"
            done[team.worker] = 1
        store.rest()
        store.close()


@ranks(2, 3, 4, 7, 16)
def post_arrives_whole_with_its_note_and_is_granted(world):
    cluster = join(world)
    for name in TABLE:
        for rows in (1, 2):
            team, store, mailbox = served(cluster, name, 300, rows)
            if world.rank == 0:
                seen = np.zeros(world.size - 1, int)
                for _ in range(TIMES * (world.size - 1)):
                    worker = mailbox.collect()
                    for row in range(rows):
                        wanted = worker * 1000 + seen[worker] * 10 + row
                        assert (mailbox.inbox[worker, row] == wanted).all(), (
                            name,
                            worker,
                            mailbox.inbox[worker, row][0],
                        )
                    assert mailbox.headers[worker].tolist() == [worker, 0.5, seen[worker], 3, 0]
                    seen[worker] += 1
                    mailbox.ack(worker, int(seen[worker]) * 7)
                assert (seen == TIMES).all()
            else:
                worker = team.worker
                for time in range(TIMES):
                    vectors = [np.full(300, worker * 1000 + time * 10 + row, np.float32) for row in range(rows)]
                    mailbox.post(vectors, worker, 0.5, time, 3, 0)
                    if time % 2:
                        assert mailbox.wait_ack() == (time + 1) * 7
                mailbox.wait_ack()
            store.rest()
            store.close()


@ranks(2, 4)
def lock_whose_holder_is_lost_is_not_waited_for_for_ever(world):
    cluster = join(world)
    store = opened(cluster, "shared", 100, copies=1)
    cluster.rendezvous.deadline_s = 0.5
    if world.rank == 1:
        store._counters.lock(LOCKS)
    world.Barrier()
    lost = False
    if world.rank != 1:
        try:
            store.push(np.ones(100, np.float32))
        except PeerLost as error:
            lost = True
            assert "sync.deadline_s" in str(error) or not error.speaks
    assert world.allreduce(int(lost)) == world.size - 1


@ranks(2, 3, 4, 7)
def groups_share_memory_with_nobody_else(world):
    cluster = join(world)
    for size in ("auto", 1, 2, 3, 100):
        group = divide(cluster, size)
        wanted = min(2, world.size) if size == "auto" else -(-world.size // min(size, world.size))
        assert group.n_groups == wanted
        assert len(group.members) <= (100 if size == "auto" else size)
        every = group.leaders.allgather(group.members) if group.leads else [tuple(range(world.size))]
        assert sorted(member for members in every for member in members) == list(range(world.size))

        def make_store(allocator, group=group):
            return SharedStore(group.team, 50, group.apart(allocator), 1, Traffic())

        store = build_measured(cluster, make_store)
        store.open()
        store.params[0][:] = -1
        group.cluster.barrier()
        store.params[0][group.cluster.rank] = world.rank
        group.cluster.barrier()
        world.Barrier()
        assert store.params[0][: len(group.members)].tolist() == list(group.members)
        assert (store.params[0][len(group.members) :] == -1).all()
        world.Barrier()
