"""Binding of a sync mode to ranks and memory (:func:`roles`, :func:`bind`), for training, benchmarks and tests."""

from typing import Any

from psframe import collectives
from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import Group, divide, undivided
from psframe.cluster.roles import Roles, Team
from psframe.collectives.base import BaseCollective
from psframe.collectives.null import Null
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.memory.extent import Places
from psframe.optim import Optimizer
from psframe.sync.base import Mode, Parts
from psframe.sync.sampler import Sampler
from psframe.sync.traits import Traits


def roles(cluster: Cluster, traits: Traits, is_stage: bool = False) -> tuple[Team, Group]:
    """Return the roles of the ranks of ``cluster`` under a mode, and this rank's group. All of them must call.

    ``is_stage``: they have a part of the network, other clusters other parts.
    """
    numbered = by_number(cluster.sizes, traits)
    team = Team(numbered.sizes, numbered.server, numbered.n_servers, comm=cluster.comm, cluster=cluster)
    if team.n_ranks == 1 or traits.group_size is None:
        return team, undivided(cluster, team, is_stage)
    return team, divide(cluster, traits.group_size)


def by_number(sizes: tuple[int, ...], traits: Traits) -> Roles:
    """Return the roles of ranks under a mode, from the number of ranks on each node."""
    alone = sum(sizes) == 1  # all modes are then equal
    return Roles(sizes, None if alone else traits.server, traits.n_servers)


def bind(
    mode: Mode,
    choice: Any,
    reproducible: str,
    cluster: Cluster,
    team: Team,
    group: Group,
    layout: Layout,
    optimizer: Optimizer,
    sampler: Sampler,
    allocator: Allocator,
    keeps_average: bool = False,
    **more: Any,
) -> tuple[BaseCollective, Arena]:
    """Build the mode over the collective of ``choice``, or none if it exchanges nothing; return that and the arena.

    No rank waits for another here. ``keeps_average``: an average of the parameters is kept with the optimizer's
    state; ``more`` are further fields of :class:`Parts`.
    """
    choice = choice if mode.traits.exchanges else Null
    # elsewhere each rank updates parameters of its own, all of them
    cuts: Places = getattr(optimizer, "cuts", "anywhere") if mode.traits.updates_shared else "anywhere"
    collective = collectives.make(choice, group.team, layout.extent(cuts), group.apart(allocator), reproducible)
    n_state = optimizer.n_state + keeps_average
    parts = Parts(team, group, layout, n_state, collective, allocator, sampler, cluster, **more)
    return collective, mode.build(parts)
