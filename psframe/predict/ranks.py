"""Command ``mpirun -n N python -m psframe.predict.ranks compute|exchange|node ...``: measurements for a prediction.

``compute CONFIG [key.path=value ...]`` runs steps of a config without exchange, and times its layers (:func:`compute`).
``exchange CONFIG`` times every way to exchange and update vectors of several sizes; ``node`` times memory and messages
(:func:`node`). Rank 0 prints JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import prod
from time import perf_counter, thread_time
from typing import Any

from psframe.cluster import begin

begin.over_ranks()

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from psframe.bench import peak  # noqa: E402
from psframe.bench.layers import DIRECTIONS, Spent, work  # noqa: E402
from psframe.bench.ranks import settle  # noqa: E402
from psframe.bench.step import Stream  # noqa: E402
from psframe.cluster.cluster import Cluster  # noqa: E402
from psframe.cluster.command import guarded, run  # noqa: E402
from psframe.cluster.communicators import mpi_name  # noqa: E402
from psframe.cluster.startup import since_launch_s  # noqa: E402
from psframe.memory.topology import read  # noqa: E402
from psframe.nn.network import Network  # noqa: E402
from psframe.nn.timed import time_layers  # noqa: E402
from psframe.predict import codecs, config_way, exchanges, load, steps  # noqa: E402
from psframe.train.assembly import assemble, setup  # noqa: E402
from psframe.train.plan import plan  # noqa: E402
from psframe.train.run import Run  # noqa: E402

SECONDS, LEAST_STEPS = 2.0, 6  # of each batch size
REFERENCE_LOOPS = 2.4e7  # iterations per second of CPython's empty loop on a core of Zen 3 at 3.4 GHz: an estimate
LOOPS = 200_000
VECTOR_BYTES, ROUNDS = 64 << 20, 7  # larger than any cache
BURSTS, BURST = 40, 50  # of round trips


def compute(cluster: Cluster, path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of a config's step here, layer by layer, while all ranks compute.

    Seconds are means over all ranks, in CPU time if a rank computes with one thread. All ranks must call.
    """
    way = cluster.run_on_root(lambda: config_way.asked(path, overrides))
    run_plan = plan.make(cluster, path, cluster.run_on_root(lambda: config_way.alone(path, overrides)))
    training_run = assemble.build_run(cluster, run_plan)
    cluster.run_on_root(lambda: config_way.check_meets(training_run.network.meets))
    setup.init_parameters(training_run, None, quiet=True)
    startup_s = since_launch_s()
    clock = _clock(training_run)
    spent = {index: Spent(clock) for index, _ in training_run.network.active}
    layers = _described(training_run.network)
    time_layers(training_run.network, lambda index, layer: spent[index], clock)
    full = training_run.sampler.max_batch
    batches = [full, max(1, full // 4)]
    timings = [_steps(training_run, n, spent, clock) for n in batches]
    for number, layer in enumerate(layers):
        layer["seconds"] = {d: [timing["layers"][number][d] for timing in timings] for d in DIRECTIONS}
        layer["full"] = work(training_run.network, number, full)
    stream = Stream(cluster, thread_time)
    for _ in range(ROUNDS):
        stream.take()
    return {
        **way,
        "cpu_time": clock is thread_time,
        "batches": batches,
        "step_s": [timing["step_s"] for timing in timings],
        "deviation": timings[0]["deviation"],
        "taken": max(timing["taken"] for timing in timings),
        "layers": layers,
        "startup_s": startup_s,
        "n_train": training_run.facts.n_train,
        "n_params": training_run.network.layout.size,
        "n_unpadded": training_run.network.layout.n_params,
        "gflops": _best(cluster, _gflops),
        "gbps": float(np.median(stream.gbps())) / cluster.n_ranks,
        "scalar": _best(cluster, _loops) / REFERENCE_LOOPS,
        "codec": codecs.measure(cluster, way["compression"], training_run.network.layout.size),
        "n_ranks": cluster.n_ranks,
        "mpi": mpi_name(),
    }


def _described(network: Network) -> list[dict[str, Any]]:
    """Return each active layer's name, the numbers that it hands on for a sample, and its parameters."""
    ends = [*(index for index, _ in network.active[1:]), len(network.layers)]
    return [
        {
            "layer": type(layer).__name__,
            "outputs": prod(network.shapes[end]),
            "params": sum(prod(param.shape) for param in layer.params.values()),
        }
        for (_, layer), end in zip(network.active, ends, strict=True)
    ]


def _clock(made: Run) -> steps.Clock:
    """Return the clock of steps: the thread's CPU time, or wall time if several threads of a rank compute."""
    samples = made.sampler.permutation(0)[: made.sampler.max_batch]
    row = np.zeros(made.work.n_losses)
    alone = steps.is_alone(lambda: made.work.gradients(samples, len(samples), 0, row), LEAST_STEPS)
    return thread_time if all(made.cluster.allgather(alone)) else perf_counter


def _steps(made: Run, n: int, spent: dict[int, Spent], clock: steps.Clock) -> dict[str, Any]:
    """Time steps of ``n`` samples, in which ranks do not wait for each other. All ranks must call."""
    order, row = made.sampler.permutation(0), np.zeros(made.work.n_losses)
    samples = order[np.arange(n) % len(order)]
    made.cluster.barrier()
    seconds, layers, lost = steps.timed(
        lambda: made.work.gradients(samples, n, 0, row), lambda: [timer.take() for timer in spent.values()], clock,
        SECONDS, LEAST_STEPS,
    )  # fmt: skip
    made.cluster.barrier()
    comm = made.cluster.comm
    return {
        **steps.figures(comm.allgather(seconds), clock),
        "layers": steps.mean(comm.allgather(steps.of_layers(layers, clock))),
        "taken": comm.allreduce(lost, MPI.MAX),
    }


def _gflops() -> float:
    return peak.gflops(clock=thread_time)


def _loops() -> float:
    began, n = thread_time(), 0
    while n < LOOPS:
        n += 1
    return LOOPS / (thread_time() - began)


def _middle(cluster: Cluster, numbers: list[float]) -> float:
    return float(np.median([n for rank_numbers in cluster.allgather(numbers) for n in rank_numbers]))


def _best(cluster: Cluster, rate: Callable[[], float]) -> float:
    """Return the best of several rates, of the median rank: no disturbance makes a loop in registers faster."""
    return _middle(cluster, [max(rate() for _ in range(ROUNDS))])


def node(cluster: Cluster) -> dict[str, Any]:
    """Return a node's figures, of all ranks together or of each one while all are busy. All ranks must call."""
    settle(cluster, read("/", environ={}))
    stream = Stream(cluster, thread_time)
    a, b = (np.ones(VECTOR_BYTES // 4, np.float32) for _ in range(2))
    copies, sums = [], []
    for _ in range(ROUNDS):
        stream.take()
        cluster.barrier()
        copies.append(_rate(a.nbytes, lambda: np.copyto(a, b)))
        cluster.barrier()
        sums.append(_rate(a.nbytes, lambda: np.add(a, b, out=a)))
    return {
        "gbps": float(np.median(stream.gbps())),
        "copy_gbps": _middle(cluster, copies),
        "sum_gbps": _middle(cluster, sums),
        "latency_us": _latency_us(cluster),
        "gflops": _best(cluster, _gflops),
        "scalar": _best(cluster, _loops) / REFERENCE_LOOPS,
        "mpi": mpi_name(),
    }


def _rate(n_bytes: int, do: Callable[[], object]) -> float:
    began = thread_time()
    do()
    return n_bytes / (thread_time() - began) / 1e9


def _latency_us(cluster: Cluster) -> float:
    """Return the microseconds of a message of 8 bytes between ranks 0 and 1, one way: the median of many bursts.

    A burst is much shorter than the kernel's time slices, so that few of them are disturbed. All ranks must call.
    """
    message, comm = np.zeros(1), cluster.comm
    if cluster.n_ranks == 1:
        return 0.0
    latencies = []
    comm.Barrier()
    for _ in range(BURSTS if comm.rank < 2 else 0):
        began = perf_counter()
        for _ in range(BURST):
            if comm.rank:
                comm.Recv(message, 0)
                comm.Send(message, 0)
            else:
                comm.Send(message, 1)
                comm.Recv(message, 1)
        latencies.append((perf_counter() - began) / BURST / 2 * 1e6)
    return float(comm.bcast(np.median(latencies) if comm.rank == 0 else None))


def _readings(cluster: Cluster) -> list[load.Reading]:
    """Return the readings of the ranks on rank 0's node, its own first. All ranks must call."""
    cluster.barrier()
    by_rank = cluster.allgather((cluster.node, load.reading()))
    return [reading for node, reading in by_rank if node == by_rank[0][0]]


def _body(cluster: Cluster, argv: Sequence[str]) -> int:
    what, *rest = argv
    kinds: dict[str, Callable[[], Any]] = {
        "compute": lambda: compute(cluster, rest[0], rest[1:]),
        "exchange": lambda: {"exchanges": exchanges.measure(cluster, rest[0])},
        "node": lambda: node(cluster),
    }
    before = _readings(cluster)
    report = kinds[what]()
    other_load = load.between(before, _readings(cluster), report.pop("taken", 0.0))
    report["load"] = asdict(other_load)
    if cluster.rank == 0:
        print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda argv: run(lambda cluster: _body(cluster, argv)), sys.argv[1:]))
