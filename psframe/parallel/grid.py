"""The ranks of a job as a grid: replicas of the network, each of them a pipeline of stages."""

from dataclasses import dataclass

from psframe import comms
from psframe.cluster import Cluster, join
from psframe.config import Config, Parallel
from psframe.errors import UserError


@dataclass(frozen=True)
class Grid:
    """Where this rank stands in it. Rank r is stage r % n_stages of replica r // n_stages: neighbours lie side by side.

    Attributes
    ----------
    n_replicas, n_stages : int
    replica, stage : int
        Of this rank.
    cluster : Cluster
        The ranks of this stage in all replicas, which exchange gradients; without a pipeline, all ranks.
    """

    n_replicas: int
    n_stages: int
    replica: int
    stage: int
    cluster: Cluster

    @property
    def is_cut(self) -> bool:
        """Whether ranks have different parts of the network."""
        return self.n_stages > 1

    def rank_of(self, stage: int) -> int:
        """Return the rank of a stage in this rank's replica."""
        return self.replica * self.n_stages + stage


def make(cluster: Cluster, parallel: Parallel) -> Grid:
    """Return the grid; all ranks must call, and :func:`judge` has found nothing."""
    n_stages = parallel.pipeline
    replica, stage = divmod(cluster.rank, n_stages)
    own = cluster
    if n_stages > 1:
        own = join(comms.keep(cluster.comm.Split(stage, key=replica)))
        # who is lost is named by its number in the job, and told once a node
        own.rendezvous.members = tuple(number * n_stages + stage for number in own.rendezvous.members)
        own.rendezvous.told_at = cluster.rendezvous.gates
    return Grid(cluster.n_ranks // n_stages, n_stages, replica, stage, own)


def judge(config: Config, n_ranks: int, server: str | None, n_servers: int) -> None:
    """UserError where a grid is not of the job's ranks, or cannot be had with what else a config asks for."""
    _judge_ranks(config.parallel, n_ranks)
    _judge_micro(config)
    if config.parallel.pipeline > 1:
        _judge_mode(config, server, n_servers)
        _judge_fault(config)


def _judge_ranks(parallel: Parallel, n_ranks: int) -> None:
    n_stages, n_replicas = parallel.pipeline, parallel.data
    fitting = [str(n) for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    if n_ranks % n_stages:
        raise UserError(
            f"parallel.pipeline must divide the number of ranks, {n_ranks}, got {n_stages}; give one of "
            f"{', '.join(fitting)}, or start {n_stages * -(-n_ranks // n_stages)} ranks"
        )
    if n_replicas not in ("auto", n_ranks // n_stages):
        raise UserError(
            f"parallel: data x pipeline must be the number of ranks, {n_ranks}, got {n_replicas} x {n_stages}; give "
            f"parallel.data={n_ranks // n_stages}, or start {int(n_replicas) * n_stages} ranks"
        )


def _judge_micro(config: Config) -> None:
    parallel, train = config.parallel, config.train
    if train.reproducible == "any_workers" and (parallel.pipeline > 1 or parallel.micro_batches not in ("auto", 1)):
        raise UserError(
            "train.reproducible: any_workers cuts a step into blocks of its own, got it with parallel.pipeline="
            f"{parallel.pipeline} and parallel.micro_batches={parallel.micro_batches}; give fixed_workers"
        )
    if parallel.pipeline == 1 and parallel.recompute:
        raise UserError(
            "parallel.recompute is for the stages of a pipeline, got it without one; give parallel.pipeline, or "
            "parallel.micro_batches: where there is one stage, one micro-batch alone keeps its activations"
        )


def _judge_mode(config: Config, server: str | None, n_servers: int) -> None:
    mode, what = config.sync["mode"], f"parallel.pipeline={config.parallel.pipeline}"
    instead = "give sync=allreduce, or sync='{mode: sync_ps, server: colocated}'"
    if mode not in ("allreduce", "sync_ps") or n_servers > 1 or config.sync.get("backup_workers"):
        several = " with sync.servers or sync.backup_workers" if mode == "sync_ps" else ""
        raise UserError(f"{what} must have a mode in which all replicas step together, got {mode}{several}; {instead}")
    if server == "dedicated":
        raise UserError(f"{what} needs every rank for a stage, got sync.server=dedicated; {instead}")


def _judge_fault(config: Config) -> None:
    for key, only in (("on_worker_loss", "stop"), ("on_nan", "stop"), ("check_every", 0), ("flip", "none")):
        if (got := getattr(config.fault, key)) != only:
            raise UserError(
                f"fault.{key} must be {only} with parallel.pipeline={config.parallel.pipeline}, where rank 0 has not "
                f"all parameters between two steps, got {got}; give fault.{key}={only}"
            )
