"""A rank is charged for what it sends, and for what comes into its node in a collective."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from psframe.nn.activations import Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.predict import machine
from psframe.predict.exchange import Node
from psframe.record.traffic import Traffic
from psframe.virtual import engines
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.job import Job
from psframe.virtual.site import world
from psframe.virtual.steps import shares

N, N_NODES, WORDS = 8, 4, 1 << 20
LINK, NODE = machine.link("10"), Node(machine.read("knl-7250-mcdram"), N // N_NODES)
RATE, LATENCY = LINK.gbit.value * 1e9 / 8, LINK.latency_us.value * 1e-6


def played(body, n=N, n_nodes=N_NODES):
    """Return what ``body(comm)`` returns on each rank, the virtual seconds of each, and the costs."""
    node = replace(NODE, ranks=n // n_nodes)
    premises = Premises([rank * n_nodes // n for rank in range(n)], lambda *_: 0.0, 0.0, node, LINK)
    costs = Costs(premises, keeps=True)
    every = world(costs.ranks, Job(premises.node_of, None, costs))

    def on_rank(number):
        costs.meter(number, [], 1)
        return body(every[number])

    found = costs.ranks.run(on_rank)
    return found, [rank.at_s for rank in costs.ranks.ranks], costs


def test_bytes_take_as_long_on_a_node_whose_ranks_take_turns():
    """Where nobody else wants the core."""
    seconds = []
    for n_of_node in (2, 1000):
        costs, traffic = Costs(Premises([0, 0], lambda *_: 0.0, 0.0, replace(NODE, ranks=n_of_node), LINK)), Traffic()
        costs.meter(0, [traffic], 1)

        def body(number, costs=costs, traffic=traffic):
            for _ in range(3 if number == 0 else 0):
                traffic.read += 1 << 24
                costs.ranks.point()
            return costs.ranks.now_s

        seconds.append(costs.ranks.run(body)[0])
    assert seconds[0] > 0
    assert seconds[1] == pytest.approx(seconds[0])


def vector(comm, n=WORDS):
    return np.full(n, comm.rank, np.float32)


def test_gather_brings_all_parts_of_other_nodes_over_the_roots_link():
    def body(comm):
        everything = np.zeros(N * WORDS, np.float32) if comm.rank == 0 else None
        comm.Gather(vector(comm), everything, 0)

    _, seconds, _ = played(body)
    least = 4 * WORDS * (N - N // N_NODES) / RATE
    assert least < seconds[0] < 1.2 * least
    assert max(seconds[1:]) < 0.1 * least


def test_broadcast_reaches_each_node_once():
    _, seconds, _ = played(lambda comm: comm.Bcast(vector(comm), 0))
    once = 4 * WORDS / RATE
    assert max(seconds[N // N_NODES :]) == pytest.approx(once + NODE.bcast_s(4 * WORDS), rel=0.05)


def test_sum_crosses_each_link_as_a_ring_does():
    def body(comm):
        total = np.zeros(WORDS, np.float32)
        comm.Allreduce(vector(comm), total)
        return total[0]

    found, seconds, _ = played(body, n=N_NODES)  # a rank a node
    assert found == [sum(range(N_NODES))] * N_NODES
    assert max(seconds) == pytest.approx(2 * (N_NODES - 1) / N_NODES * 4 * WORDS / RATE, rel=0.05)


def test_lanes_of_a_node_share_its_link():
    def body(comm):
        lane = comm.Split(comm.rank % (N // N_NODES), comm.rank)
        total = np.zeros(WORDS, np.float32)
        lane.Allreduce(vector(comm), total)

    _, seconds, _ = played(body)
    assert max(seconds) == pytest.approx(2 * (N // N_NODES) * 0.75 * 4 * WORDS / RATE, rel=0.05)


def test_alltoall_brings_a_share_of_each_part():
    def body(comm):
        counts = [WORDS // N] * N
        comm.Alltoallv([vector(comm), counts, MPI.FLOAT], [np.zeros(WORDS, np.float32), counts, MPI.FLOAT])

    _, seconds, _ = played(body)
    over = 4 * WORDS * (N - N // N_NODES) / N * (N // N_NODES) / RATE
    assert max(seconds) == pytest.approx(over + NODE.turns_s(4 * WORDS), rel=0.05)


def test_alltoall_to_a_few_brings_them_all_of_it_and_others_nothing():
    def body(comm):
        give = [WORDS if rank == 0 else 0 for rank in range(N)]
        take = [WORDS if comm.rank == 0 else 0] * N
        comm.Alltoallv([vector(comm), give, MPI.FLOAT], [np.zeros(sum(take), np.float32), take, MPI.FLOAT])

    _, seconds, _ = played(body)
    over = 4 * WORDS * (N - N // N_NODES) / RATE
    assert seconds[0] == pytest.approx(over + NODE.turns_s(4 * WORDS * N), rel=0.05)
    assert max(seconds[1:]) < 0.1 * over


def test_sum_on_one_rank_comes_over_its_link_alone():
    def body(comm):
        comm.Ireduce(vector(comm), np.zeros(WORDS, np.float32) if comm.rank == 0 else None, 0).Wait()

    _, seconds, _ = played(body)
    over = 2 * (N_NODES - 1) / N_NODES * 4 * WORDS / RATE
    assert seconds[0] == pytest.approx(over + NODE.allreduce_s(4 * WORDS), rel=0.05)
    assert max(seconds[1:]) < 0.1 * over


def test_memory_of_another_node_is_asked_for_first():
    def body(comm):
        window = comm.window(vector(comm))
        comm.Barrier()
        before = comm.ranks.now_s
        if comm.rank == 0:
            window.Get(np.zeros(WORDS, np.float32), N - 1)
        return comm.ranks.now_s - before

    found, _, costs = played(body)
    assert found[0] == pytest.approx(2 * LATENCY + 4 * WORDS / RATE, rel=0.05)
    asks, answers = costs.between.messages[-2:]
    assert (asks.source, asks.target) == (answers.target, answers.source) == (0, N_NODES - 1)
    assert asks.n_bytes < 1000 < answers.n_bytes


def test_what_a_message_has_waited_for_gives_its_time_again():
    def body(comm):
        draw = np.random.default_rng(comm.rank)
        for _ in range(6):
            comm.ranks.sleep(float(draw.exponential(1e-3)))
            comm.send(None, (comm.rank + 3) % N)
            comm.recv((comm.rank - 3) % N)
            comm.Allreduce(MPI.IN_PLACE, vector(comm, 1 << 14))

    _, _, costs = played(body)
    between = costs.between
    assert len(between.messages) > N * 6
    assert all(message.delay_s >= 0 for message in between.messages)
    again = engines.own(between.messages, between.network.bytes_per_s, between.network.latency_s)
    assert again == pytest.approx(between.arrived_s, rel=1e-6)


def test_messages_of_a_rank_arrive_in_the_order_of_their_sending():
    def body(comm):
        if comm.rank == 0:
            for n in (WORDS, 1, 1000):
                comm.Isend(np.full(n, n, np.float32), N - 1)
            return comm.ranks.now_s
        if comm.rank == N - 1:
            for n in (WORDS, 1, 1000):
                room = np.zeros(n, np.float32)
                comm.Recv(room, 0)
                assert (room == n).all()
            return comm.ranks.now_s
        return None

    found, _, _ = played(body)
    assert found[0] < 0.1 * found[-1]  # who sends so goes on
    assert found[-1] > 4 * WORDS / RATE


def test_sum_comes_while_a_rank_computes():
    def body(comm):
        total = np.zeros(WORDS, np.float32)
        request = comm.Iallreduce(vector(comm), total)
        comm.ranks.sleep(1.0)
        request.Wait()
        return comm.ranks.now_s

    found, _, _ = played(body, n=N_NODES)
    assert max(found) < 1.001


def test_backward_reaches_the_first_layer_last():
    layers = [Conv2d(4, 3), ReLU(), Flatten(), Dense(8), ReLU(), Dense(3)]
    network = Network(layers, (1, 12, 12), 3)
    found = shares(network)
    begins = sorted(found, reverse=True)
    assert begins[-1] == 0
    assert found[0] == 1.0
    assert [found[begin] for begin in begins] == sorted(found.values())
    conv, dense, last = 2 * 9 * 4 * 100, 2 * 400 * 8, 2 * 8 * 3
    assert found[network.begins[3]] == pytest.approx((1 + 2 * (dense + last) / (conv + dense + last)) / 3)
