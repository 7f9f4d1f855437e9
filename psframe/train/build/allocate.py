"""The memory of a run, taken: every role's, what the ranks of a node share, and the data."""

import errno
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np

from psframe.config.placement_spec import ROLES
from psframe.errors import limits
from psframe.train import placement_report
from psframe.cluster.cluster import Cluster
from psframe.train.data.dataset import Held, hold
from psframe.errors import UserError
from psframe.memory.allocator import Allocator, Home
from psframe.memory.pages import RESERVED_BYTES, no_huge_pages, populate
from psframe.memory.role_placement import Places
from psframe.memory.free_memory import available
from psframe.train.plan.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """Bytes by role: of this rank in all, of that its private ones, what the ranks of its node share together, and what
    those of each of ``SCOPES`` do."""

    by_role: dict[str, int]
    private: dict[str, int]
    shared: dict[str, int]
    within: dict[str, dict[str, int]]

    @classmethod
    def of(cls, allocator: Allocator, data_bytes: int) -> "Sizes":
        """Return what was asked of ``allocator``, with ``data_bytes`` beside it."""
        by_role, private = dict(allocator.bytes_by_role + allocator.beside), dict(allocator.bytes_by_role)
        for role, memory in allocator.pieces:
            private[role] -= len(memory)
        data = {"data": data_bytes} if data_bytes else {}
        shared = {role: n for role, n in allocator.shared_by_role.items() if n}
        return cls(by_role | data, private, shared, {scope: dict(counts) for scope, counts in allocator.within.items()})


def homes(cluster: Cluster, places: Places) -> dict[str, Home]:
    """Return the home of every role, as the node's first rank sees it. All ranks must call."""
    plain = cluster.link.tell({role: astuple(home) for role, home in places.homes().items()})
    return {role: Home(*home) for role, home in plain.items()}


def take(cluster: Cluster, plan: Plan, sizes: Sizes, allocator: Allocator, held: Held | None) -> Held:
    """Take the memory of every role, and read the data into theirs, unless they are held already; return these.

    What must lie on certain nodes comes first, on all ranks: what may lie elsewhere would fill them. All must call.
    """
    places = plan.places
    for role in ROLES:  # of which a server that is alone on its node shares fewer
        scopes = (("", cluster), ("stage", plan.grid.cluster), ("crew", plan.grid.crew))
        for within, among in scopes:
            n_bytes = (sizes.within[within] if within else sizes.shared).get(role, 0)
            memory = cluster.agree_everywhere(_share(among, places, role, n_bytes) if n_bytes else lambda: None)
            if memory is not None:
                allocator.lend(role, memory, within)
    for strict in (True, False):
        roles = [role for role in sizes.private if places.is_strict(role) is strict]
        cluster.agree_everywhere(_reserve(allocator, {role: sizes.private[role] for role in roles}))
        if held is None and places.is_strict("data") is strict:
            held = hold(cluster, plan.facts, plan.dataset, places)
    assert held is not None
    return held


def furnish(cluster: Cluster, make: Callable[[Allocator], T]) -> T:
    """Return what ``make`` makes of an allocator, in ordinary memory where it is first touched. All ranks must call.

    It is called twice: what it asks for is reckoned, then given. AgreedError where that does not fit.
    """
    reckoning, allocator = Allocator(), Allocator()
    make(reckoning)
    placement_report.judge_room(cluster, reckoning.bytes_by_role)
    for role, n_bytes in reckoning.shared_by_role.items():
        allocator.lend(role, cluster.link.share(n_bytes, take=False))
    made = make(allocator)
    for _, memory in allocator.pieces:
        populate(memory)
    cluster.barrier()
    return made


def _reserve(allocator: Allocator, sizes: dict[str, int]) -> Callable[[], None]:
    def reserve() -> None:
        for role, n_bytes in sizes.items():
            allocator.reserve(role, n_bytes)

    return reserve


def _share(cluster: Cluster, places: Places, role: str, n_bytes: int) -> Callable[[], np.ndarray]:
    """Share memory whose pages nobody has taken yet."""
    policy = places.policies[role]
    reserved = RESERVED_BYTES[policy.huge_pages]

    def share() -> np.ndarray:
        try:
            return cluster.link.share(n_bytes, reserved, take=False)
        except OSError as error:
            if error.errno != errno.ENOMEM and limits.met(error):
                raise  # as for the data
            if reserved:
                raise no_huge_pages(policy, n_bytes) from None
            raise UserError(
                f"the ranks of a node must have memory to share for their {role}, {n_bytes:,} bytes, got "
                f"{available()} ({error.strerror}); start fewer ranks, or give collective=buffer, or "
                "sync.store=window to a mode that keeps a store"
            ) from None

    return share


def adopt(cluster: Cluster, places: Places, allocator: Allocator) -> None:
    """Let every rank place and take those pieces of shared memory that are its own. All ranks must call."""

    def own() -> None:
        for role, memory in allocator.pieces:
            places.adopt(role, memory)

    cluster.agree_everywhere(own)  # and nobody uses memory that has not been taken yet
    allocator.blocks += allocator.pieces
