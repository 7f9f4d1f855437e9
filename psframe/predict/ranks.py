"""Command ``mpirun -n N python -m psframe.predict.ranks compute|exchange|node ...``: measurements for a prediction.

``compute CONFIG [key.path=value ...]`` runs steps of a config without exchange, and times its layers (:func:`compute`).
``exchange CONFIG`` times every way to exchange and update vectors of several sizes; ``node`` times memory and messages
(:func:`node`). Rank 0 prints JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import perf_counter, thread_time
from typing import Any

from psframe.cluster import begin

begin.over_ranks()

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from psframe import collectives, sync  # noqa: E402
from psframe.bench import peak  # noqa: E402
from psframe.bench.layers import DIRECTIONS, Spent, work  # noqa: E402
from psframe.bench.ranks import mpi_name, settle  # noqa: E402
from psframe.bench.step import Stream  # noqa: E402
from psframe.cluster.cluster import Cluster  # noqa: E402
from psframe.cluster.command import guarded, run  # noqa: E402
from psframe.cluster.startup import since_launch_s  # noqa: E402
from psframe.collectives import compression  # noqa: E402
from psframe.config import registry, schema  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.memory.allocator import Allocator  # noqa: E402
from psframe.memory.topology import read  # noqa: E402
from psframe.nn.timed import time_layers  # noqa: E402
from psframe.predict import codecs, exchanges, load, steps  # noqa: E402
from psframe.train.build import assemble, setup  # noqa: E402
from psframe.train.plan import plan  # noqa: E402
from psframe.train.run import Run  # noqa: E402

#: a measured step exchanges nothing, and is the same in every mode
ALONE = ("sync={mode: allreduce}", "collective={name: 'null'}", "train.reproducible=none")
MODES = ("sync_ps", "allreduce")
SECONDS, LEAST_STEPS = 2.0, 6  # of each batch size
REFERENCE_LOOPS = 2.4e7  # iterations per second of CPython's empty loop on a core of Zen 3 at 3.4 GHz: an estimate
LOOPS = 200_000
VECTOR_BYTES, ROUNDS = 64 << 20, 7  # larger than any cache
BURSTS, BURST = 40, 50  # of round trips


def compute(cluster: Cluster, path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of a config's step here, layer by layer, while all ranks compute.

    Seconds are means over all ranks, in CPU time if a rank computes with one thread. All ranks must call.
    """
    asked = cluster.run_on_root(lambda: _asked(path, overrides))
    judged = plan.make(cluster, path, [*overrides, *ALONE])
    cluster.run_on_root(lambda: _check(judged.config.parallel.is_cut))
    made = assemble.build_run(cluster, judged)
    setup.init_parameters(made, quiet=True)
    startup_s = since_launch_s()
    clock = _clock(made)
    spent = {index: Spent(clock) for index, _ in made.network.active}
    layers: list[dict[str, Any]] = [{"layer": type(layer).__name__} for _, layer in made.network.active]
    time_layers(made.network, lambda index, layer: spent[index], clock)
    full = made.sampler.max_batch
    batches = [full, max(1, full // 4)]
    found = [_steps(made, n, spent, clock) for n in batches]
    for number, layer in enumerate(layers):
        layer["seconds"] = {d: [of["layers"][number][d] for of in found] for d in DIRECTIONS}
        layer["full"] = work(made.network, number, full)
    stream = Stream(cluster, thread_time)
    for _ in range(ROUNDS):
        stream.take()
    return {
        **asked,
        "cpu_time": clock is thread_time,
        "batches": batches,
        "step_s": [of["step_s"] for of in found],
        "deviation": found[0]["deviation"],
        "taken": max(of["taken"] for of in found),
        "layers": layers,
        "startup_s": startup_s,
        "n_train": made.facts.n_train,
        "n_params": made.network.layout.size,
        "gflops": _best(cluster, _gflops),
        "gbps": float(np.median(stream.gbps())) / cluster.n_ranks,
        "scalar": _best(cluster, _loops) / REFERENCE_LOOPS,
        "codec": codecs.measure(cluster, asked["compression"], made.network.layout.size),
        "n_ranks": cluster.n_ranks,
        "mpi": mpi_name(),
    }


def _asked(path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the config's way to exchange; raise UserError if it cannot be predicted."""
    said = schema.read(path, overrides, "auto")
    mode = sync.make(registry.bind("sync", sync.TABLE, said.sync, "mode"))
    name = said.sync["mode"]
    if name not in MODES or said.sync.get("backup_workers"):
        raise UserError(
            f"psframe.predict knows sync.mode {' and '.join(MODES)}, in which a step is one exchange of all, got "
            f"{name}{' with backup workers' if name in MODES else ''}; give one of them, or measure by psframe.compare"
        )
    if said.train.reproducible == "any_workers":
        raise UserError(
            "psframe.predict must have a batch of fixed size for each worker, got train.reproducible=any_workers; give "
            "train.reproducible=fixed_workers"
        )
    collective = said.collective["name"]
    if collective != "auto" and collective not in collectives.TABLE:
        raise UserError(f"psframe.predict knows the collectives of psframe, got {collective}; give one of those")
    if collective != "auto":  # checks its keys: the measured step uses another collective
        registry.bind("collective", collectives.TABLE, said.collective)
    encoded = said.collective.get("compression", "none")
    if encoded != "none":
        compression.codec_maker(encoded, Allocator())
    return {
        "model": said.model["name"],
        "mode": name,
        "server": mode.traits.server,
        "n_servers": mode.traits.n_servers,
        "collective": collective,
        "compression": encoded,
        "reproducible": said.train.reproducible,
        "placement": str(said.placement.parameters["name"]),
    }


def _check(is_cut: bool) -> None:
    if is_cut:
        raise UserError("psframe.predict must have a whole network on each worker, got parallel; leave it out")


def _clock(made: Run) -> steps.Clock:
    """Return the clock of steps: the thread's CPU time, or wall time if several threads of a rank compute."""
    mine = made.sampler.permutation(0)[: made.sampler.max_batch]
    row = np.zeros(made.work.n_losses)
    alone = steps.is_alone(lambda: made.work.gradients(mine, len(mine), 0, row), LEAST_STEPS)
    return thread_time if all(made.cluster.comm.allgather(alone)) else perf_counter


def _steps(made: Run, n: int, spent: dict[int, Spent], clock: steps.Clock) -> dict[str, Any]:
    """Time steps of ``n`` samples, in which ranks do not wait for each other. All ranks must call."""
    order, row = made.sampler.permutation(0), np.zeros(made.work.n_losses)
    mine = order[np.arange(n) % len(order)]
    made.cluster.barrier()
    seconds, layers, taken = steps.timed(
        lambda: made.work.gradients(mine, n, 0, row), lambda: [each.take() for each in spent.values()], clock, SECONDS,
        LEAST_STEPS,
    )  # fmt: skip
    made.cluster.barrier()
    comm = made.cluster.comm
    return {
        **steps.figures(comm.allgather(seconds), clock),
        "layers": steps.mean(comm.allgather(steps.of_layers(layers, clock))),
        "taken": comm.allreduce(taken, MPI.MAX),
    }


def _gflops() -> float:
    return peak.gflops(clock=thread_time)


def _loops() -> float:
    began, n = thread_time(), 0
    while n < LOOPS:
        n += 1
    return LOOPS / (thread_time() - began)


def _middle(cluster: Cluster, numbers: list[float]) -> float:
    return float(np.median([n for of in cluster.comm.allgather(numbers) for n in of]))


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
    one, comm = np.zeros(1), cluster.comm
    if cluster.n_ranks == 1:
        return 0.0
    taken = []
    comm.Barrier()
    for _ in range(BURSTS if comm.rank < 2 else 0):
        began = perf_counter()
        for _ in range(BURST):
            if comm.rank:
                comm.Recv(one, 0)
                comm.Send(one, 0)
            else:
                comm.Send(one, 1)
                comm.Recv(one, 1)
        taken.append((perf_counter() - began) / BURST / 2 * 1e6)
    return float(comm.bcast(np.median(taken) if comm.rank == 0 else None))


def _readings(cluster: Cluster) -> list[load.Reading]:
    """Return the readings of the ranks on rank 0's node, its own first. All ranks must call."""
    cluster.barrier()
    every = cluster.comm.allgather((cluster.node, load.reading()))
    return [each for node, each in every if node == every[0][0]]


def _body(cluster: Cluster, argv: Sequence[str]) -> int:
    what, *rest = argv
    kinds: dict[str, Callable[[], Any]] = {
        "compute": lambda: compute(cluster, rest[0], rest[1:]),
        "exchange": lambda: {"exchanges": exchanges.measure(cluster, rest[0])},
        "node": lambda: node(cluster),
    }
    before = _readings(cluster)
    found = kinds[what]()
    seen = load.between(before, _readings(cluster), found.pop("taken", 0.0))
    found["load"] = asdict(seen)
    if cluster.rank == 0:
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda argv: run(lambda cluster: _body(cluster, argv)), sys.argv[1:]))
