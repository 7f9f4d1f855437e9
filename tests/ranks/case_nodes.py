"""Several nodes on one machine: ranks in network namespaces of their own, which share no memory with each other."""

import json
from itertools import product
from unittest import mock

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.errors import UserError
from psframe.record.traffic import Traffic
from psframe.train.assembly import assemble
from tests.helpers.suite import IS_FULL, combined
from tests.ranks.contract import CODECS, LAYOUTS, MODES, STEPS, expected, start, train
from tests.ranks.harness import ranks
from tests.ranks.lateness import count_from
from tests.ranks.nodes import UNEVEN, apart, own_network
from tests.ranks.training import folder, hashes
from tests.ranks.training import train as train_config

KEYS = (
    {},
    {"reducers": "all"},
    {"reducers": "server"},
    {"leaders": 2},
    {"leaders": 99},
    {"bucket_bytes": 0},
    {"bucket_bytes": 64},
    {"bucket_bytes": 680, "leaders": 2},
)


@ranks(2, 3, 4, 7)
def hierarchical_has_the_canonical_bits_on_two_nodes(world):
    cluster = apart(world, 2)
    for shapes in (*LAYOUTS, UNEVEN):
        for mode, arguments in MODES:
            for keys in KEYS:
                form = ("hierarchical", keys)
                arena, _, team, _ = train(cluster, mode, arguments, form, "fixed_workers", shapes)
                wanted = expected(team.n_workers, arena.layout, STEPS)
                np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{mode} {arguments} {keys} {shapes}")


@ranks(3, 4, 7, virtual=True)
def hierarchical_has_the_canonical_bits_on_unequal_nodes(world):
    cluster = apart(world, 3)
    assert sum(cluster.sizes) == world.size
    for mode, arguments in MODES:
        arena, _, team, _ = train(cluster, mode, arguments, ("hierarchical", {}), "fixed_workers", [(300_000,)])
        wanted = expected(team.n_workers, arena.layout, STEPS)  # three chunks pass from node to node
        np.testing.assert_array_equal(arena.params, wanted)


@ranks(3, 4)
def bytes_that_are_sent_between_nodes_are_written_there(world):
    """Whatever way they take: up and down a chain of nodes, to a server and back, in MPI's own sums, or encoded."""
    every = [*combined(MODES, ({}, {"leaders": 2, "bucket_bytes": 680}), ("fixed_workers", "any_workers", "none"))]
    every += [(MODES[number], {"compression": CODECS[number]}, "fixed_workers") for number in range(len(MODES))]
    sent, written = [], []

    def noting(count, into):
        return lambda traffic, n_bytes: into.append(n_bytes) or count(traffic, n_bytes)

    for n_nodes in (2, 3):
        cluster = apart(world, n_nodes)
        for (mode, arguments), keys, reproducible in every:
            del sent[:], written[:]
            with (
                mock.patch.object(Traffic, "send", noting(Traffic.send, sent)),
                mock.patch.object(Traffic, "receive", noting(Traffic.receive, written)),
            ):
                train(cluster, mode, arguments, ("hierarchical", keys), reproducible, LAYOUTS[2])
            n_sent, n_written = world.allreduce(sum(sent)), world.allreduce(sum(written))
            assert n_sent == n_written > 0, f"{mode} {arguments} {keys} {reproducible} on {n_nodes} nodes"


@ranks(7, virtual=True)
def leaders_have_their_share_of_what_goes_between_nodes(world):
    cluster = apart(world, 3)
    sent = {}
    for leaders in (1, 2):
        form = ("hierarchical", {"leaders": leaders})
        *_, collective, _, _ = train(cluster, "allreduce", {}, form, "fixed_workers", [(300_000,)])
        sent[leaders] = world.allgather(collective.traffic.sent)
        assert sum(bytes_sent > 0 for bytes_sent in sent[leaders]) == 3 * leaders
    assert sum(sent[1]) == sum(sent[2])
    assert max(sent[2]) <= 0.51 * max(sent[1])


@ranks(3, 4, 7, virtual=True)
def gradients_that_leave_early_make_the_same_bits(world):
    with folder(world) as where:
        for mode in ("allreduce", "sync_ps", "{mode: sync_ps, server: colocated}"):
            one = hashes(world, world.size, where, f"sync={mode}")
            every = [*product((64, 0), (2, 3))]
            for bucket_bytes, n_nodes in every if IS_FULL else every[::3]:
                keys = f"collective={{name: hierarchical, bucket_bytes: {bucket_bytes}}}"
                with own_network(world, min(world.rank, n_nodes - 1)):
                    records, _, _ = train_config(world, world.size, where, f"sync={mode}", keys)
                assert records[0]["n_nodes"] == n_nodes
                assert [record["params_sha256"] for record in records] == one, (mode, keys, n_nodes)
                if bucket_bytes:
                    assert all(0 <= record["overlap"] <= 1 for record in records)


@ranks(2, 4, 7, virtual=True)
def hierarchical_lets_mpi_choose_the_order(world):
    cluster = apart(world, 2)
    for (mode, arguments), leaders in product(MODES, (1, 2)):
        form = ("hierarchical", {"leaders": leaders, "bucket_bytes": 680})
        arena, _, team, _ = train(cluster, mode, arguments, form, "none", UNEVEN)
        wanted = expected(team.n_workers, arena.layout, STEPS)
        np.testing.assert_allclose(arena.params, wanted, rtol=1e-4, atol=1e-5)
        assert len(set(world.allgather(arena.params.tobytes()))) == 1


@ranks(2, 4, virtual=True)
def hierarchical_encodes_what_goes_between_nodes(world):
    cluster = apart(world, 2)
    for mode, arguments in MODES:
        for codec in CODECS:
            form = ("hierarchical", {"compression": codec})
            arena, collective, team, _ = train(cluster, mode, arguments, form, "fixed_workers", LAYOUTS[2])
            assert len(set(world.allgather(arena.params.tobytes()))) == 1, (mode, codec)
            assert not np.array_equal(arena.params, start(arena.layout.size))
            if codec in ("fp16", "bf16"):
                wanted = expected(team.n_workers, arena.layout, STEPS)
                np.testing.assert_allclose(arena.params, wanted, rtol=0.05, atol=0.05)
            sent = world.allreduce(collective.traffic.sent)
            assert 0 < sent <= STEPS * 2 * arena.params.nbytes


@ranks(4)
def shared_wants_one_node(world):
    cluster = apart(world, 2)
    try:
        train(cluster, "allreduce", {}, ("shared", {}), "none", LAYOUTS[0])
    except UserError as error:
        assert "got 2 nodes" in str(error)
        assert "collective=hierarchical" in str(error)
    else:
        raise AssertionError("shared took two nodes")


@ranks(3, 4)
def training_on_two_nodes_by_default_has_the_bits_of_one(world):
    with folder(world) as where:
        one = hashes(world, world.size, where)
        world.Barrier()
        with own_network(world, world.rank % 2):
            two, _, run = train_config(world, world.size, where)
        assert two[0]["collective"] == "hierarchical"
        assert two[0]["n_nodes"] == 2
        assert two[0]["bytes_sent"] > 0
        # two nodes number their ranks in another order: the samples of a worker are those of its number
        assert [record["params_sha256"] for record in two] == one
        with own_network(world, world.rank % 2):
            keys = "collective={name: shared, fallback: buffer}"
            fallen, _, run = train_config(world, world.size, where, keys)
        assert [record["params_sha256"] for record in fallen] == one
        assert fallen[0]["collective"] == "shared -> buffer"
        notes = json.loads((run / "placement.json").read_text())["ranks"][0]["notes"]
        assert any("collective=shared fell back to buffer" in note for note in notes)
        with own_network(world, world.rank % 2):
            train_config(world, world.size, where, "collective=shared", expect=2)


@ranks(2, virtual=True)
def collective_in_place_of_another_has_what_it_takes_of_its_keys(world):
    given = {"compression": {"name": "topk", "share": 0.1}, "bucket_bytes": 4096, "leaders": 2, "fallback": "buffer"}
    arguments = assemble.bound("buffer", given).arguments
    assert (arguments["compression"], arguments["bucket_bytes"]) == (given["compression"], 4096)
    assert "leaders" not in arguments


@ranks(2, 4)
def node_lost_behind_the_barrier_of_an_exchange_is_noticed(world):
    """Its first rank has come, and then sends nothing: MPI itself would wait for ever."""
    for exchange, waits in (("gather", 0), ("run_on_root_in_time", 1)):
        cluster = apart(world, 2)
        come, lost = world.Ibarrier(), None
        if cluster.node == waits:
            count_from(cluster.rendezvous, 0.5, come.Test)  # the other one waits as long as it takes
            try:
                cluster.gather_in_time(1) if exchange == "gather" else cluster.run_on_root_in_time(lambda: 1)
            except PeerLost as error:
                lost = str(error)
        elif cluster.node_rank == 0:
            cluster._come()
        come.Wait()
        if cluster.node == waits and cluster.node_rank == 0:
            assert lost is not None, f"{exchange} was not given up"
            assert f"node {1 - waits} " in lost, lost
