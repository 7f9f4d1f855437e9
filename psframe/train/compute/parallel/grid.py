"""Grid of a job's ranks (:class:`Grid`): replicas of the network, each a pipeline of stages split into shards."""

from dataclasses import dataclass

from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import subcluster
from psframe.config.schema import Parallel
from psframe.errors import UserError


@dataclass(frozen=True)
class Grid:
    """Position of rank r: shard r % M of stage r // M % S of replica r // (S M), so neighbours have consecutive ranks.

    Attributes
    ----------
    n_replicas, n_stages, n_shards : int
    replica, stage, shard : int
        Position of this rank.
    cluster : Cluster
        Ranks with the same part of the network in all replicas, which exchange gradients; all ranks if nothing is cut.
    crew : Cluster
        Ranks with the shards of this rank's layers, in its replica.
    """

    n_replicas: int
    n_stages: int
    n_shards: int
    replica: int
    stage: int
    shard: int
    cluster: Cluster
    crew: Cluster


def make(cluster: Cluster, parallel: Parallel) -> Grid:
    """Return the grid, for settings that passed :func:`check`. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, if the shards of a layer span nodes.
    """
    n_stages, n_shards = parallel.pipeline, parallel.model
    replica, place = divmod(cluster.rank, n_stages * n_shards)
    stage, shard = divmod(place, n_shards)
    peers = subcluster(cluster, place) if n_stages * n_shards > 1 else cluster
    crew = subcluster(cluster, replica * n_stages + stage) if n_shards > 1 else peers
    cluster.run_on_all(lambda: _check_crew(cluster, crew, n_shards))
    return Grid(cluster.n_ranks // (n_stages * n_shards), n_stages, n_shards, replica, stage, shard, peers, crew)


def _check_crew(cluster: Cluster, crew: Cluster, n_shards: int) -> None:
    if n_shards > 1 and crew.n_nodes > 1:
        raise UserError(
            f"parallel.model must be ranks of one node, which share memory, got {n_shards} over nodes of "
            f"{', '.join(map(str, cluster.sizes))} ranks; give a number that divides each of these"
        )


def check(parallel: Parallel, n_ranks: int) -> None:
    """Raise UserError if the grid does not match the number of ranks."""
    size, data = parallel.pipeline * parallel.model, parallel.data
    axes = " x ".join(key for key in ("pipeline", "model") if getattr(parallel, key) > 1) or "pipeline"
    if n_ranks % size:
        factors = ", ".join(str(n) for n in range(1, n_ranks + 1) if n_ranks % n == 0)
        largest = size * (n_ranks // size)
        fewer = f"{largest} or " if largest else ""
        raise UserError(
            f"parallel: {axes} must divide the number of ranks, {n_ranks}, got {size}; give one of {factors}, or start "
            f"{fewer}{size * -(-n_ranks // size)} ranks"
        )
    if data not in ("auto", n_ranks // size):
        raise UserError(
            f"parallel: data x {axes} must be the number of ranks, {n_ranks}, got {data} x {size}; give "
            f"parallel.data={n_ranks // size}, or start {int(data) * size} ranks"
        )
