"""Checks of a config against ranks, nodes and dataset, before any costly work; each raises UserError if it fails."""

import importlib
import platform
from importlib.metadata import version

from psframe import __version__
from psframe.cluster.cluster import Cluster
from psframe.cluster.communicators import mpi_name
from psframe.config.schema import Fault, Record
from psframe.errors import UserError, reason
from psframe.memory.sysfs import spell
from psframe.train.data.dataset import Facts
from psframe.train.faults.injection import Crash


def versions() -> dict[str, str]:
    """Return the versions of the software that a run's config.yaml records."""
    packages = {name: version(name) for name in ("numpy", "numba")}
    return {"psframe": __version__, "python": platform.python_version(), "mpi": mpi_name(), **packages}


def check_record(asked: Record, rank: int) -> None:
    """Raise UserError if a package that the run's record needs is missing on this rank."""
    for key, package in (("usage", "psutil"), *([("tensorboard", "tensorboardX")] if rank == 0 else [])):
        if getattr(asked, key):
            try:
                importlib.import_module(package)
            except Exception as error:  # a package with a broken dependency may raise anything
                raise UserError(
                    f"record.{key} must have the package {package}, got none that can be imported ({reason(error)}); "
                    f"pip install {package}, or give record.{key}=false"
                ) from None


def check_nodes(cluster: Cluster, facts: Facts) -> None:
    first = cluster.bcast(facts)
    if facts != first:
        raise UserError(
            f"all nodes must see one dataset, got {facts} on node {cluster.node}, {first} on node 0; copy it"
        )


def check_crash(fault: Fault) -> None:
    Crash(fault.crash_at)


def check_slow_rank(fault: Fault, workers: tuple[int, ...]) -> None:
    slow_rank = fault.slow_rank
    if isinstance(slow_rank, int) and slow_rank not in workers:
        raise UserError(
            f"fault.slow_rank must be a worker's rank, {spell(workers)}, got {slow_rank}; give one of these, or none"
        )


def check_loss(cluster: Cluster) -> None:
    """Raise UserError if MPI does not let the ranks survive the death of one."""
    if not cluster.outlives:
        raise UserError(
            "fault.on_worker_loss: continue must have an Open MPI whose mpirun was given --with-ft ulfm, got "
            f"{' '.join(mpi_name().split(',')[0].split())} without; start it so, or give fault.on_worker_loss=stop, "
            "and let `python -m psframe.run --restarts K` start the job again"
        )


def check_size(n_workers: int, facts: Facts) -> None:
    if n_workers > facts.n_train:
        raise UserError(
            f"there must be at least as many training samples as workers, got {facts.n_train} samples for "
            f"{n_workers} workers; start fewer ranks or give more samples"
        )
