"""The ranks of a job as a grid: replicas of the network, each a pipeline of stages, whose layers are in shards."""

from dataclasses import dataclass

from psframe.cluster import communicators
from psframe.cluster.cluster import Cluster, join
from psframe.config.schema import Config, Parallel
from psframe.errors import UserError


@dataclass(frozen=True)
class Grid:
    """Where rank r stands in it: shard r % M of stage r // M % S of replica r // (S M), so neighbours lie side by side.

    Attributes
    ----------
    n_replicas, n_stages, n_shards : int
    replica, stage, shard : int
        Of this rank.
    cluster : Cluster
        The ranks that have in all replicas what this one has, and exchange gradients; where nothing is cut, all ranks.
    crew : Cluster
        The ranks that have the shards of this one's layers in its replica.
    """

    n_replicas: int
    n_stages: int
    n_shards: int
    replica: int
    stage: int
    shard: int
    cluster: Cluster
    crew: Cluster

    @property
    def is_cut(self) -> bool:
        """Whether ranks have different parts of the network."""
        return self.n_stages * self.n_shards > 1


def make(cluster: Cluster, parallel: Parallel) -> Grid:
    """Return the grid; all ranks must call, and :func:`judge` has found nothing.

    Raises
    ------
    AgreedError
        On every rank, where shards are not on one node.
    """
    n_stages, n_shards = parallel.pipeline, parallel.model
    replica, place = divmod(cluster.rank, n_stages * n_shards)
    stage, shard = divmod(place, n_shards)
    own = _apart(cluster, place) if n_stages * n_shards > 1 else cluster
    crew = _apart(cluster, replica * n_stages + stage) if n_shards > 1 else own
    cluster.agree_everywhere(lambda: _judge_crew(cluster, crew, n_shards))
    return Grid(cluster.n_ranks // (n_stages * n_shards), n_stages, n_shards, replica, stage, shard, own, crew)


def _apart(cluster: Cluster, color: int) -> Cluster:
    """Return those ranks of a cluster that have given one color."""
    made = join(communicators.keep(cluster.comm.Split(color, key=cluster.rank)))
    # who is lost is named by its number in the job, and told once a node
    numbers = made.comm.allgather(cluster.rank)
    made.rendezvous.members = tuple(numbers[member] for member in made.rendezvous.members)
    made.rendezvous.told_at = cluster.rendezvous.gates
    return made


def _judge_crew(cluster: Cluster, crew: Cluster, n_shards: int) -> None:
    if n_shards > 1 and crew.n_nodes > 1:
        raise UserError(
            f"parallel.model must be ranks of one node, which share memory, got {n_shards} over nodes of "
            f"{', '.join(map(str, cluster.sizes))} ranks; give a number that divides each of these"
        )


def judge(config: Config, n_ranks: int, server: str | None, n_servers: int) -> None:
    """UserError where a grid is not of the job's ranks, or cannot be had with what else a config asks for."""
    _judge_ranks(config.parallel, n_ranks)
    _judge_micro(config)
    if config.parallel.pipeline * config.parallel.model > 1:
        _judge_mode(config, server, n_servers)
        _judge_fault(config)


def _judge_ranks(parallel: Parallel, n_ranks: int) -> None:
    size, data = parallel.pipeline * parallel.model, parallel.data
    what = " x ".join(key for key in ("pipeline", "model") if getattr(parallel, key) > 1) or "pipeline"
    if n_ranks % size:
        fitting = ", ".join(str(n) for n in range(1, n_ranks + 1) if n_ranks % n == 0)
        most = size * (n_ranks // size)
        fewer = f"{most} or " if most else ""
        raise UserError(
            f"parallel: {what} must divide the number of ranks, {n_ranks}, got {size}; give one of {fitting}, or start "
            f"{fewer}{size * -(-n_ranks // size)} ranks"
        )
    if data not in ("auto", n_ranks // size):
        raise UserError(
            f"parallel: data x {what} must be the number of ranks, {n_ranks}, got {data} x {size}; give "
            f"parallel.data={n_ranks // size}, or start {int(data) * size} ranks"
        )


def _judge_micro(config: Config) -> None:
    parallel, train = config.parallel, config.train
    if train.reproducible == "any_workers" and (
        parallel.pipeline * parallel.model > 1 or parallel.micro_batches not in ("auto", 1)
    ):
        raise UserError(
            f"train.reproducible: any_workers cuts a step into blocks of its own, got it with {_spelled(parallel)} and "
            f"parallel.micro_batches={parallel.micro_batches}; give fixed_workers"
        )
    if parallel.convolutions == "data" and (parallel.model == 1 or parallel.pipeline > 1):
        raise UserError(
            "parallel.convolutions: data is for parallel.model=2 or more without a pipeline, got it with model: "
            f"{parallel.model} and pipeline: {parallel.pipeline}; give these, or parallel.convolutions=model"
        )
    if parallel.pipeline == 1 and parallel.recompute:
        raise UserError(
            "parallel.recompute is for the stages of a pipeline, got it without one; give parallel.pipeline, or "
            "parallel.micro_batches: where there is one stage, one micro-batch alone keeps its activations"
        )


def _judge_mode(config: Config, server: str | None, n_servers: int) -> None:
    mode, what = config.sync["mode"], _spelled(config.parallel)
    instead = "give sync=allreduce, or sync='{mode: sync_ps, server: colocated}'"
    if mode not in ("allreduce", "sync_ps") or n_servers > 1 or config.sync.get("backup_workers"):
        several = " with sync.servers or sync.backup_workers" if mode == "sync_ps" else ""
        raise UserError(f"{what} must have a mode in which all replicas step together, got {mode}{several}; {instead}")
    if server == "dedicated":
        raise UserError(f"{what} needs every rank for a part of the network, got sync.server=dedicated; {instead}")


def _judge_fault(config: Config) -> None:
    for key, only in (("on_worker_loss", "stop"), ("on_nan", "stop"), ("check_every", 0), ("flip", "none")):
        if (got := getattr(config.fault, key)) != only:
            raise UserError(
                f"fault.{key} must be {only} with {_spelled(config.parallel)}, where rank 0 has not "
                f"all parameters between two steps, got {got}; give fault.{key}={only}"
            )


def _spelled(parallel: Parallel) -> str:
    asked = [f"parallel.{key}={n}" for key in ("pipeline", "model") if (n := getattr(parallel, key)) > 1]
    return " and ".join(asked) or "parallel.pipeline=1"
