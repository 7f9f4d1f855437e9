"""Measurement of every way to exchange and update on this machine, by ranks and bytes (:func:`measure`).

Each way trains epochs of a small network, whose one wide layer has the requested number of parameters. The exchange's
time is that of a step beyond computation alone. It is thus measured with caches filled by the computation, and with the
ranks' natural arrival times.
"""

import gc
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.cluster.cluster import Cluster
from psframe.config.registry import PositiveInt
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import MaxPool2d
from psframe.predict.job import method
from psframe.train import epoch
from psframe.train.assembly import assemble, setup
from psframe.train.plan import plan
from psframe.train.run import Run

SHAPE, CLASSES, CHANNELS = (1, 28, 28), 10, 20
FLAT = CHANNELS * 12 * 12
SIZES = (1e5, 1.5e6, 6e6)  # bytes
FREED_BYTES = 31 << 20  # just below glibc's largest threshold, M_MMAP_THRESHOLD_MAX
BATCH, STEPS, EPOCHS = 32, 8, 3  # the first epoch is not counted
COLLECTIVES = ("shared", "buffer", "object")
#: ``shared`` once: its sums are the same with either ``reproducible``
WAYS = [
    (mode, reproducible, name)
    for mode in ("sync_ps", "allreduce")
    for reproducible in ("none", "fixed_workers")
    for name in COLLECTIVES
    if (reproducible, name) != ("none", "shared")
]


def build(input_shape: Shape, n_classes: int, *, width: PositiveInt) -> list[Layer]:
    """Return a network whose parameters are nearly all in a dense layer of 2,880 x ``width``."""
    return [Conv2d(CHANNELS, 5), MaxPool2d(2), Flatten(), Dense(width), ReLU(), Dense(n_classes)]


def measure(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    """Return the seconds by way and size. All ranks must call.

    Parameters
    ----------
    path : str
        Path of an empty config.
    """
    np.ones(FREED_BYTES // 8)  # as after reading a dataset: malloc then keeps the memory that pickles release
    rows = []
    for size in SIZES:
        alone_s = _alone(cluster, path, size)
        for mode, reproducible, name in WAYS:
            n_bytes, step_s = _step(cluster, path, size, mode, reproducible, name)
            compute_s = alone_s
            if mode == "sync_ps" and cluster.n_ranks > cluster.rendezvous.n_cores:
                compute_s *= (cluster.n_ranks - 1) / cluster.n_ranks  # one rank fewer computes
            kind = method(mode, "dedicated", 1, name, reproducible)
            seconds = max(1e-6, step_s - compute_s)
            rows.append({"method": kind, "ranks": cluster.n_ranks, "bytes": n_bytes, "seconds": seconds})
    return rows


def _begun(cluster: Cluster, path: str, size: float, n_workers: int, *overrides: str) -> Run:
    width, samples = max(1, round(size / 4 / FLAT)), STEPS * n_workers * BATCH
    run_plan = plan.make(
        cluster,
        path,
        [
            f"model={{name: 'psframe.predict.exchanges:build', width: {width}}}",
            f"dataset={{name: synthetic, shape: {list(SHAPE)}, classes: {CLASSES}, samples: {samples}}}",
            f"train={{batch_size: {BATCH}, threads: 1}}",
            "optimizer={name: sgd, lr: 0.001, momentum: 0.9}",
            *overrides,
        ],
    )
    run = assemble.build_run(cluster, run_plan)
    setup.init_parameters(run, None, quiet=True)
    return run


def _alone(cluster: Cluster, path: str, size: float) -> float:
    """Return the seconds of a step without exchange, as the mean over all ranks."""
    run = _begun(cluster, path, size, cluster.n_ranks, "sync={mode: allreduce}", "collective={name: 'null'}")
    order, row = run.sampler.permutation(0), np.zeros(run.work.n_losses)
    seconds = []
    for _ in range(EPOCHS):
        cluster.barrier()
        began = perf_counter()
        for step in range(STEPS):
            run.work.gradients(run.sampler.samples(order, step, cluster.rank), BATCH, 0, row)
        seconds.append(cluster.comm.allreduce(perf_counter() - began) / cluster.n_ranks / STEPS)
    _end(run)
    return float(np.median(seconds[1:]))


def _step(cluster: Cluster, path: str, size: float, mode: str, reproducible: str, name: str) -> tuple[int, float]:
    """Return the bytes of the parameters, and the slowest rank's seconds of a step."""
    n_workers = cluster.n_ranks - (mode == "sync_ps")
    run = _begun(cluster, path, size, n_workers, f"sync={{mode: {mode}}}", f"collective={{name: {name}}}",
                  f"train.reproducible={reproducible}")  # fmt: skip
    seconds = []
    for _ in range(EPOCHS):
        cluster.barrier()
        began = perf_counter()
        epoch.train_epoch(run)
        seconds.append(cluster.comm.allreduce(perf_counter() - began, MPI.MAX) / STEPS)
        epoch.forget(run)
    n_bytes = 4 * run.network.layout.size
    _end(run)
    return n_bytes, float(np.median(seconds[1:]))


def _end(made: Run) -> None:
    made.sync.close()
    made.cluster.barrier()
    del made
    gc.collect()  # releases its memory before more is allocated
