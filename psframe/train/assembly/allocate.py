"""Allocation of a run's memory (:func:`take`): private memory of every role, memory shared by a node, and the data."""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import TypeVar

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.config.placement_spec import ROLES
from psframe.errors import UserError, limits
from psframe.memory.allocator import Allocator, Home
from psframe.memory.free_memory import available
from psframe.memory.pages import RESERVED_BYTES, no_huge_pages, populate
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.train import placement_report
from psframe.train.assembly.sizes import Sizes
from psframe.train.data.dataset import LoadedData, hold
from psframe.train.plan.plan import Plan

T = TypeVar("T")


def node_near(site: Site) -> int | None:
    """Return the NUMA node that this rank is bound to; None if its CPUs are of several."""
    return site.homes[0] if len(site.homes) == 1 else None


def homes(cluster: Cluster, places: Places) -> dict[str, Home]:
    """Return the home of every role as seen by the node's first rank, and what is near its ranks. All must call."""
    node = node_near(places.site)
    of_ranks = cluster.link.gather(b"" if node is None else f"{cluster.rank} {node}".encode())
    pairs = [[int(number) for number in frame.split()] for frame in of_ranks if frame]
    plain, pairs, roles = cluster.link.tell(
        [{role: astuple(home) for role, home in places.homes().items()}, pairs, places.near]
    )
    near = dict(pairs)
    return {role: replace(Home(*home), near=near if role in roles else {}) for role, home in plain.items()}


def take(cluster: Cluster, plan: Plan, sizes: Sizes, allocator: Allocator, held: LoadedData | None) -> LoadedData:
    """Allocate the memory of every role, and read the data unless ``held`` has them; return the data.

    Strictly placed roles come first on all ranks: others could fill their NUMA nodes. All ranks must call.
    """
    places = plan.places
    for role in ROLES:  # every role on every rank: a server alone on its node shares fewer, but all ranks must agree
        scopes = (("", cluster), ("stage", plan.grid.cluster), ("crew", plan.grid.crew))
        for scope, scope_cluster in scopes:
            n_bytes = (sizes.within[scope] if scope else sizes.shared).get(role, 0)
            memory = cluster.run_on_all(_share(scope_cluster, places, role, n_bytes) if n_bytes else lambda: None)
            if memory is not None:
                allocator.lend(role, memory, scope)
    allocator.counts_only = False
    data_are_strict = held is None and any(cluster.allgather(places.is_strict("data")))  # nodes may have other tiers
    for strict in (True, False):
        chosen = [place for place in sizes.private if places.is_strict(place) is strict]
        cluster.run_on_all(_reserve(allocator, {place: sizes.private[place] for place in chosen}))
        if held is None and data_are_strict is strict:
            held = hold(cluster, plan.facts, plan.dataset, places)
    assert held is not None
    return held


def build_measured(cluster: Cluster, make: Callable[[Allocator], T]) -> T:
    """Return the result of ``make`` with an allocator of ordinary, first-touch memory. All ranks must call.

    ``make`` is called twice: to compute the sizes, then to allocate. Raises AgreedError if the memory does not fit.
    """
    reckoning, allocator = Allocator(), Allocator()
    make(reckoning)
    placement_report.check_room(cluster, reckoning.bytes_by_place)
    for role, n_bytes in reckoning.shared_by_role.items():
        allocator.lend(role, cluster.link.share(n_bytes, take=False))
    allocator.counts_only = False
    result = make(allocator)
    for _, memory in allocator.pieces:
        populate(memory)
    cluster.barrier()
    return result


def _reserve(allocator: Allocator, sizes: dict[str, int]) -> Callable[[], None]:
    def reserve() -> None:
        for place, n_bytes in sizes.items():
            allocator.reserve(place, n_bytes)

    return reserve


def _share(cluster: Cluster, places: Places, role: str, n_bytes: int) -> Callable[[], np.ndarray]:
    """Return a function that shares memory with no page touched yet."""
    policy = places.policies[role]
    reserved = RESERVED_BYTES[policy.huge_pages]

    def share() -> np.ndarray:
        try:
            return cluster.link.share(n_bytes, reserved, take=False)
        except OSError as error:
            if error.errno != errno.ENOMEM and limits.met(error):
                raise  # as in data.dataset._share
            if reserved:
                raise no_huge_pages(policy, n_bytes) from None
            raise UserError(
                f"the ranks of a node must have memory to share for their {role}, {n_bytes:,} bytes, got "
                f"{available()} ({error.strerror}); start fewer ranks, or give collective=buffer, or "
                "sync.store=window to a mode that keeps a store"
            ) from None

    return share


def adopt(cluster: Cluster, places: Places, allocator: Allocator) -> None:
    """Place and touch this rank's own pieces of memory, as by now known to be whose. All ranks must call."""
    parts = [(place, part) for place, part in allocator.parts() if len(part.memory)]

    def own() -> None:
        for place, part in parts:
            places.adopt(place, part.memory)

    cluster.run_on_all(own)  # collective: no rank uses memory that its owner has not placed
    places.mixed = Counter()
    for place, part in parts:
        places.mixed[place] += part.n_shared
        allocator.blocks.append((place, part.memory))
