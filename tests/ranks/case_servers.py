"""Several servers, each with a share of the parameters."""

from itertools import product
from types import SimpleNamespace

import h5py
import numpy as np

from psframe import compiled
from psframe.cluster.joining import join
from psframe.cluster.roles import Team
from psframe.collectives.bucket_exchanges import Division
from psframe.record import sealed
from tests.helpers.suite import IS_FULL, combined
from tests.ranks.contract import LAYOUTS, STEPS, expected, train
from tests.ranks.harness import ranks
from tests.ranks.nodes import UNEVEN, apart, own_network
from tests.ranks.training import folder, hashes
from tests.ranks.training import train as train_config

KEYS = ({}, {"bucket_bytes": 0, "gather": "gather"}, {"bucket_bytes": 64})


def state_in(run):
    """Return the optimizer's state of a run's last checkpoint."""
    name = (run / "checkpoints" / "latest").read_text().strip()
    with h5py.File(run / "checkpoints" / name) as file:
        return file["state"][:]


def numbers_of(world, server):
    """Return numbers of servers that these ranks can have."""
    most = world.size - (server == "dedicated")
    return sorted({min(k, most) for k in (2, 3, most)})


@ranks(2, 3, 4, 7)
def bits_are_those_of_one_server(world):
    cluster = join(world)
    for shapes, server, keys in combined((*LAYOUTS, UNEVEN), ("dedicated", "colocated"), KEYS):
        for servers in numbers_of(world, server):
            spec, form = {"server": server, "servers": servers}, ("buffer", keys)
            arena, _, team, _ = train(cluster, "sync_ps", spec, form, "fixed_workers", shapes)
            assert len(team.servers) == servers
            wanted = expected(team.n_workers, arena.layout, STEPS)
            np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{spec} {keys} {shapes}")


@ranks(4, 7, virtual=True)
def bits_are_those_of_one_server_on_nodes_and_of_any_workers(world):
    cluster = apart(world, 3)
    for server, keys in product(("dedicated", "colocated"), KEYS):
        spec = {"server": server, "servers": 3}
        arena, _, team, _ = train(cluster, "sync_ps", spec, ("buffer", keys), "fixed_workers", UNEVEN)
        wanted = expected(team.n_workers, arena.layout, STEPS)
        np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{spec} {keys}")
    any_workers = ["train={reproducible: any_workers, global_batch: 24, blocks: 8, epochs: 2}", "collective=buffer"]
    with folder(world) as where:
        one = hashes(world, 2, where, "sync.mode=sync_ps", *any_workers)
        for servers in (1, 2, 3):
            assert hashes(world, world.size, where, f"sync={{mode: sync_ps, servers: {servers}}}", *any_workers) == one


@ranks(2, virtual=True)
def share_may_be_empty(world):
    """Of a bucket of fewer numbers than there are servers."""
    team = SimpleNamespace(comm=world, servers=tuple(range(20)), worker_of_rank={0: 0, 1: 1}, worker=world.rank)
    team.comm = SimpleNamespace(rank=world.rank, size=20)
    share = Division(slice(16, 32), team.servers, team, np.zeros(64, np.float32), 2)
    assert sum(share.counts) == 16
    assert min(share.counts) == 0
    assert share.rows.shape == (2, share.own.stop - share.own.start)
    assert compiled.elementwise.Mean(list(share.rows)).over(1) is not None


@ranks(2, 4, 7, virtual=True)
def mpi_may_choose_the_order(world):
    cluster = join(world)
    for server, keys in product(("dedicated", "colocated"), KEYS):
        for servers in numbers_of(world, server):
            spec = {"server": server, "servers": servers}
            arena, _, team, _ = train(cluster, "sync_ps", spec, ("buffer", keys), "none", UNEVEN)
            wanted = expected(team.n_workers, arena.layout, STEPS)
            np.testing.assert_allclose(arena.params, wanted, rtol=1e-4, atol=1e-5)
            assert len(set(world.allgather(arena.params.tobytes()))) == 1


@ranks(7)
def servers_are_on_different_nodes_as_far_as_there_are(world):
    with own_network(world, (0, 0, 0, 1, 1, 1, 2)[world.rank]):
        cluster = join(world)
    assert tuple(cluster.sizes) == (3, 3, 1)
    wanted = (0, 3, 6, 1, 4, 2, 5)
    for k in range(1, 7):
        team = Team(cluster.sizes, "dedicated", k, comm=cluster.comm, cluster=cluster)
        assert team.servers == wanted[:k]
        assert team.workers == tuple(rank for rank in range(7) if rank not in wanted[:k])
        assert team.applies_updates == (cluster.rank in wanted[:k])
        assert (team.worker is None) == team.applies_updates
        colocated = Team(cluster.sizes, "colocated", k, comm=cluster.comm, cluster=cluster)
        assert (colocated.servers, colocated.worker) == (wanted[:k], cluster.rank)


@ranks(7, virtual=True)
def servers_receive_their_shares(world):
    cluster, received = apart(world, 3), {}
    for servers in (1, 3):
        spec, form = {"server": "colocated", "servers": servers}, ("buffer", {"bucket_bytes": 0})
        _, collective, *_ = train(cluster, "sync_ps", spec, form, "fixed_workers", [(300_000,)])
        received[servers] = world.allgather(collective.traffic.written)
    assert max(received[3]) < 0.6 * max(received[1])
    assert sum(n > min(received[3]) for n in received[3]) == 3


@ranks(3, 4, 7, virtual=True)
def runs_and_continued_runs_have_the_bits_of_one_server(world):
    every = (("adam", "colocated"), ("sgd", "dedicated"), ("adam", "dedicated"))
    for optimizer, server in every if IS_FULL else every[:2]:
        spec = f"{{mode: sync_ps, server: {server}, servers: 2}}"
        keys = [f"optimizer={{name: {optimizer}, lr: 0.01}}", "checkpoint.every_epochs=2"]
        with folder(world) as where:
            n_workers = world.size - 2 * (server == "dedicated")
            one, _, plain = train_config(world, n_workers, where, "sync=allreduce", *keys, "train.epochs=5")
            wanted = [record["params_sha256"] for record in one]
            whole, _, run = train_config(world, world.size, where, f"sync={spec}", *keys, "train.epochs=5")
            assert [record["params_sha256"] for record in whole] == wanted
            assert whole[0]["collective"] == "buffer"
            assert whole[0]["n_servers"] == 2
            np.testing.assert_array_equal(state_in(run), state_in(plain))
            cut = [f"sync={spec}", *keys, "name=cut"]
            train_config(world, world.size, where, *cut, "train.epochs=2")
            rest, _, _ = train_config(world, world.size, where, *cut, "train.epochs=5", "checkpoint.resume=auto")
            assert [record["params_sha256"] for record in rest] == wanted


@ranks(4, virtual=True)
def checkpoints_inside_an_epoch_have_all_of_the_state(world):
    keys = ["optimizer={name: adam, lr: 0.01}", "dataset.samples=1800", "train.epochs=2"]
    often = ["checkpoint={every_seconds: 0.001, keep: 1000}", "sync={mode: sync_ps, servers: 2}"]
    with folder(world) as where:
        whole, _, run = train_config(world, world.size, where, *keys, *often)
        inside = []
        for path in sorted((run / "checkpoints").glob("*.h5")):
            with h5py.File(path) as file:
                inside += [path.name] if sealed.count(file, "cursor") else []
        assert inside
        world.Barrier()
        if world.rank == 0:
            (run / "checkpoints" / "latest").write_text(f"{inside[len(inside) // 2]}\n")
        world.Barrier()
        again, _, _ = train_config(world, world.size, where, *keys, *often, f"checkpoint.resume={run}")
        assert [record["params_sha256"] for record in again] == [record["params_sha256"] for record in whole]
