"""Judgement of a config without ranks and without MPI (:func:`judge`), by the checks that a run's plan makes.

Left out is what only the ranks or their machine can tell: whether MPI and all ranks are there, the placement of memory
and the room for it, the times by which a network is cut, the folder of runs, and the contents of the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from psframe import sync
from psframe.cluster.roles import Roles
from psframe.collectives.compression import codec_maker
from psframe.config import registry
from psframe.config.registry import Choice
from psframe.config.schema import DEFAULTS, Config, Train
from psframe.memory import role_placement
from psframe.memory.allocator import Allocator
from psframe.nn.network import Network
from psframe.sync import stores
from psframe.sync.base import Mode
from psframe.sync.binding import by_number
from psframe.train.compute import any_workers
from psframe.train.compute.parallel import grid as grids
from psframe.train.data.dataset import Facts
from psframe.train.plan import checks, combinations, sections
from psframe.train.plan.combinations import Combination
from psframe.train.plan.optimizer_trial import check as check_optimizer


@dataclass(frozen=True)
class Judged:
    """A config that passed the checks.

    Attributes
    ----------
    choices : dict of str to Choice
        Chosen member of each family, by its config key.
    n_params : int
        Numbers in the network's trained tensors.
    exchanges : bool
        True if the mode uses the collective.
    roles : Roles or None
        Ranks that exchange gradients; None if their number is not known.
    unused : list of str
        Keys without an effect, unless they have their defaults.
    """

    config: Config
    choices: dict[str, Choice]
    facts: Facts
    n_params: int
    exchanges: bool
    roles: Roles | None
    unused: list[str]


def judge(path: str, overrides: Sequence[str], n_ranks: int | None = None) -> Judged:
    """Read a config, look at its dataset, build its network without memory, and check all that needs no ranks.

    Parameters
    ----------
    n_ranks : int, optional
        Ranks of the job, on one node. Without it, what depends on their number is not checked, and several ranks are
        assumed.

    Raises
    ------
    UserError
        For the first mistake.
    """
    resolved, unused = sections.resolve(path, overrides, "shared")
    config = msgspec.convert(resolved, Config)
    checks.check_record(resolved["record"], rank=0)
    choices = {section: sections.choice(resolved, section) for section in sections.TABLES}
    facts = Facts.of(choices["dataset"]())
    mode: Mode = sync.make(choices["sync"])
    if n_ranks is not None:
        grids.check(config.parallel, n_ranks)
    alone = n_ranks == config.parallel.pipeline * config.parallel.model
    combination = Combination(choices["sync"].name, mode.traits, config, choices["collective"], alone=alone)
    combinations.check(combination)
    roles = _roles(config, mode, facts, n_ranks)
    check_optimizer(choices["optimizer"], config.train.reproducible)
    any_workers.check(config.train, roles.n_workers if roles else 1)
    _check_named_inside(choices, mode)
    network: Network = sections.network(choices["model"], facts, config.parallel)
    if network.whole.statistic:
        combinations.check(replace(combination, statistic=network.whole.statistic))
    sections.check_cut(choices["model"], facts, config.parallel)
    unused = [key for key in checks.all_unused(unused, mode.traits, config.train) if _is_chosen(config, key)]
    return Judged(config, choices, facts, network.whole.n_params, mode.traits.exchanges, roles, unused)


def _roles(config: Config, mode: Mode, facts: Facts, n_ranks: int | None) -> Roles | None:
    """Return the roles of the replicas of a part of the network; UserError if they cannot run the config."""
    if n_ranks is None:
        checks.check_fault(config.fault, None)
        return None
    roles = by_number((n_ranks // (config.parallel.pipeline * config.parallel.model),), mode.traits)
    checks.check_size(roles.n_workers, facts)
    if roles.n_ranks > 1:
        mode.check(roles)
    checks.check_fault(config.fault, tuple(range(n_ranks)) if config.parallel.is_cut else roles.workers)
    return roles


def _is_chosen(config: Config, key: str) -> bool:
    """Return False if a key without an effect has its default, which the config may not even mention."""
    section, _, name = key.partition(".")
    if section == "train":
        return bool(getattr(config.train, name) != getattr(Train(), name))
    return bool(key != "collective" or config.collective["name"] != DEFAULTS["collective"])


def _check_named_inside(choices: dict[str, Choice], mode: Mode) -> None:
    """Raise UserError if a placement is none, or psframe's own strategies name a store or codec that is none."""
    for place in sections.PLACES.values():
        role_placement.made(choices[place])
    store = choices["sync"].arguments.get("store", "auto")
    if ":" not in choices["sync"].name and mode.traits.keeps_store and store != "auto":
        registry.load("sync.store", stores.TABLE, store)
    codec = choices["collective"].arguments.get("compression", "none")
    if ":" not in choices["collective"].name and mode.traits.exchanges and codec != "none":
        codec_maker(codec, Allocator())
