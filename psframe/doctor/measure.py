"""Bandwidths of this machine's memory tiers, and rates of moves between them, as measured (:func:`measured`).

A tier's bandwidth is that of ``c = a + b`` by a thread on each core, over memory of the tier's node nearest to it. A
written byte counts twice, as in :mod:`psframe.memory.tier_options`.
"""

import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from psframe import compiled
from psframe.errors import UserError
from psframe.memory.auto import NAMES
from psframe.memory.pages import populate
from psframe.memory.process_site import Site
from psframe.memory.tier_options import WRITE_COST
from psframe.memory.topology import Topology
from psframe.record.spread import spread

ROUNDS = 9
VECTOR_BYTES, LEAST_BYTES = 32 << 20, 1 << 20  # of each of a thread's three vectors, beyond its share of caches
MOVED_BYTES = 64 << 20
SHARE = 1 / 4  # of a node's free memory that is taken


def measured(topology: Topology) -> dict[str, Any]:
    """Return GB/s by tier (``gbps``), and from tier to tier (``move_gbps``): median and quartiles, and ``n_threads``.

    UserError if this process may not place memory, or a node has too little of it.
    """
    allowed = os.sched_getaffinity(0)
    cores = [min(allowed.intersection(core)) for core in topology.cores if allowed.intersection(core)]
    cpus = cores or sorted(allowed)
    present = [name for name in NAMES if topology.of_tier(name)]
    near = {name: [Site(topology, (cpu,)).nearest(topology.of_tier(name))[0] for cpu in cpus] for name in present}
    rates = {name: spread(_bandwidths(topology, cpus, nodes)) for name, nodes in near.items()}
    moves: dict[str, dict[str, float]] = {}
    for fast, slow in pairwise(present):
        there, back = _moves(topology, near[fast][0], near[slow][0])
        moves |= {f"{fast} to {slow}": spread(there), f"{slow} to {fast}": spread(back)}
    return {"n_threads": len(cpus), "gbps": rates, "move_gbps": moves}


def _memory(node: int, n_bytes: int) -> np.ndarray:
    """Return memory on a node, uint8 (n_bytes,), whose pages are there."""
    memory = np.frombuffer(compiled.numa.Block(n_bytes), np.uint8)
    try:
        compiled.numa.mbind(memory, "bind", [node])
        populate(memory)
    except OSError as error:
        raise UserError(
            f"memory of NUMA node {node} must be there to be measured, got none for {n_bytes:,} bytes "
            f"({error.strerror}); in a container, allow mbind with --cap-add SYS_NICE"
        ) from None
    return memory


def _room(topology: Topology, node: int, n_shares: int, most: int) -> int:
    """Return the bytes to take of a node, in whole pages; UserError if they are too few."""
    page, free = compiled.numa.PAGE_BYTES, topology.node(node).free_bytes
    n_bytes = min(most, int(free * SHARE / n_shares)) // page * page
    if n_bytes < LEAST_BYTES:
        raise UserError(f"NUMA node {node} must have free memory to be measured, got {free:,} bytes; end what takes it")
    return n_bytes


def _bandwidths(topology: Topology, cpus: Sequence[int], nodes: Sequence[int]) -> list[float]:
    """Return GB/s of each round, by a thread on each CPU with memory on its node."""
    n_bytes = min(_room(topology, node, 3 * nodes.count(node), VECTOR_BYTES) for node in set(nodes))
    vectors = [[_memory(node, n_bytes).view(np.float64) for _ in range(3)] for node in nodes]
    ends = np.zeros((len(cpus), ROUNDS, 2))
    together = threading.Barrier(len(cpus))

    def add(number: int) -> None:
        os.sched_setaffinity(0, {cpus[number]})  # of this thread alone
        a, b, c = vectors[number]
        for turn in range(-1, ROUNDS):  # once to warm up
            together.wait()
            began = perf_counter()
            np.add(a, b, out=c)
            if turn >= 0:
                ends[number, turn] = began, perf_counter()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(len(cpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = ends[:, :, 1].max(axis=0) - ends[:, :, 0].min(axis=0)
    return ((2 + WRITE_COST) * n_bytes * len(cpus) / seconds / 1e9).tolist()


def _moves(topology: Topology, fast: int, slow: int) -> tuple[list[float], list[float]]:
    """Return GB/s of each round at which a thread moves pages from node to node, and back."""
    n_bytes = min(_room(topology, node, 1, MOVED_BYTES) for node in (fast, slow))
    memory = _memory(fast, n_bytes)
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for node, found in zip((slow, fast), rates, strict=True):
            began = perf_counter()
            n_there = compiled.numa.move(memory, [node])
            found.append(n_there * compiled.numa.PAGE_BYTES / (perf_counter() - began) / 1e9)
    return rates


def lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of a report; with several tiers, also the keys that give the rates to a plan."""
    told = ["", f"measured     by {found['n_threads']} thread(s), medians with quartiles"]
    for kind, rates in (("reads and writes", found["gbps"]), ("moves pages", found["move_gbps"])):
        for name, rate in rates.items():
            told.append(f"  {name:<11}{kind} at {rate['median']:.4g} GB/s ({rate['low']:.4g} to {rate['high']:.4g})")
    if found["move_gbps"]:
        gbps = ", ".join(f"{name}: {rate['median']:.4g}" for name, rate in found["gbps"].items())
        slowest = min(rate["median"] for rate in found["move_gbps"].values())
        told.append(f"  for a plan of auto: gbps: {{{gbps}}}; move_gbps: at most {slowest:.3g}")
    return told
