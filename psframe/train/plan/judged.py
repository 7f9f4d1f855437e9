"""Judgement of a config by all that can be known before there is a network or memory (:func:`judge`).

A plan makes it over the ranks of a job, ``psframe check`` over ranks that it only counts: both tell the same mistake.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from psframe import sync
from psframe.cluster.roles import Roles
from psframe.config.registry import Choice
from psframe.config.schema import Config, Source
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.metrics.meter import Metrics
from psframe.nn.network import Network
from psframe.optim import CompiledOptimizer
from psframe.sync.base import Mode
from psframe.sync.binding import by_number
from psframe.sync.traits import Traits
from psframe.train.compute import any_workers
from psframe.train.compute.parallel import cut, hybrid
from psframe.train.compute.parallel import grid as grids
from psframe.train.compute.parallel.split import check as check_split
from psframe.train.compute.parallel.split import split
from psframe.train.data import augment
from psframe.train.data.augment import Recipe
from psframe.train.data.dataset import Facts
from psframe.train.plan import checks, combinations, sections
from psframe.train.plan.combination import Combination
from psframe.train.plan.optimizer_trial import check as check_optimizer

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset

T = TypeVar("T")


class Ranks(Protocol):
    """Ranks that judge a config: a :class:`psframe.cluster.cluster.Cluster`, or ranks that are only counted.

    ``sizes`` are the ranks of each node; empty while their number is not known.
    """

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def rank(self) -> int: ...

    def run_on_root(self, body: Callable[[], T]) -> T: ...

    def run_on_nodes(self, body: Callable[[], T]) -> T: ...

    def run_on_all(self, body: Callable[[], T]) -> T: ...


@dataclass
class Judged:
    """A config that passed the checks.

    It is the same on every rank, except ``dataset`` (on each node's first rank).

    Attributes
    ----------
    choices : dict of str to Choice
        Chosen member of each family, by its config key.
    asked : Combination
        Combination of options that passed the checks.
    metrics : dict of str to Metric
        Metrics of the test set, by label.
    resolved : dict
        Full config with every default, as config.yaml records it.
    unused : list of str
        Keys that the chosen members do not use.
    """

    config: Config
    choices: dict[str, Choice]
    asked: Combination
    facts: Facts
    metrics: Metrics
    dataset: "Dataset | None"
    resolved: dict[str, Any]
    unused: list[str]

    @property
    def recipe(self) -> Recipe:
        """What is made of training samples and their labels."""
        return Recipe(self.config.train.seed, self.config.augment, self.config.train.label_smoothing)

    def network(self, own: slice = slice(None), shard: int | None = None) -> Network:
        """Return the network, or a stage or shard of it, without memory; UserError if it does not fit the data."""
        parallel = self.config.parallel
        layers = self.choices["model"](self.facts.input_shape, self.facts.n_classes)
        if shard is not None:
            kinds = (Dense, Conv2d) if parallel.convolutions == "model" else (Dense,)
            layers = split(layers, parallel.model, shard, kinds)
        return Network(layers, self.facts.input_shape, self.facts.n_classes, own, self.config.train.precision)

    def check_tensors(self, layout: Layout) -> None:
        """Raise UserError if the optimizer names tensors that a network of this layout does not have."""
        optimizer = self.choices["optimizer"]()
        if isinstance(optimizer, CompiledOptimizer):
            optimizer.check(layout)

    def check_cut(self) -> None:
        """Raise UserError if there are fewer layers than stages, or no layer can be split into shards."""
        parallel = self.config.parallel
        if parallel.model > 1:
            shard = self.network(shard=0)
            check_split(shard, parallel.model)
            if parallel.convolutions == "data":
                hybrid.place(shard)
        if parallel.pipeline > 1:
            cut.check(self.network(), parallel.pipeline)


def judge(
    ranks: Ranks, source: Source, overrides: Sequence[str], heed: Callable[[Config], None] = lambda config: None
) -> Judged:
    """Read a config, look at its dataset, and check what goes together, on as few ranks as possible. All must call.

    ``heed`` is called with the config before any code of the user.

    Raises
    ------
    UserError
        For the first mistake; on every rank of a job, as AgreedError.
    """
    default = "hierarchical" if len(ranks.sizes) > 1 else "shared"
    resolved, unused = ranks.run_on_root(lambda: sections.resolve(source, overrides, default))
    config = msgspec.convert(resolved, Config)
    heed(config)
    ranks.run_on_all(lambda: checks.check_record(config.record, ranks.rank))
    # a rank that cannot import a user's own module raises here
    choices = ranks.run_on_all(lambda: {section: sections.choice(resolved, section) for section in sections.TABLES})
    datasets: list[Dataset] = []
    facts = Facts(**ranks.run_on_nodes(lambda: _facts(choices["dataset"], datasets)))
    mode: Mode = ranks.run_on_all(lambda: sync.make(choices["sync"]))
    alone = sum(ranks.sizes) == config.parallel.pipeline * config.parallel.model
    cuts = ranks.run_on_all(lambda: check_optimizer(choices["optimizer"], config.train.reproducible))
    asked = Combination(choices["sync"].name, mode.traits, config, choices["collective"], alone=alone, cuts=cuts)
    ranks.run_on_root(lambda: _check_together(asked, mode, facts, ranks.sizes))
    if not mode.traits.exchanges and choices["collective"].name != default:
        unused.append("collective")
    unused += [*any_workers.unused(config.train), *config.schedule.unused(), *config.average.unused()]
    measured = ranks.run_on_all(lambda: sections.metrics_of(config.record.metrics, facts.n_classes))
    return Judged(config, choices, asked, facts, measured, datasets[0] if datasets else None, resolved, unused)


def roles_of(config: Config, traits: Traits, sizes: tuple[int, ...]) -> Roles:
    """Return the roles of all ranks, or of those with the same part of a network that is cut."""
    if config.parallel.is_cut:
        sizes = (sum(sizes) // (config.parallel.pipeline * config.parallel.model),)
    return by_number(sizes, traits)


def _facts(choice: Choice, kept: "list[Dataset]") -> dict[str, Any]:
    kept.append(choice())
    return Facts.of(kept[0]).to_plain()


def _check_together(asked: Combination, mode: Mode, facts: Facts, sizes: tuple[int, ...]) -> None:
    """Raise UserError if options, data and the roles of the ranks do not go together."""
    config, n_workers = asked.config, 1
    if sizes:
        grids.check(config.parallel, sum(sizes))
    combinations.check(asked)
    augment.check(config.augment, facts)
    checks.check_crash(config.fault)
    if sizes:
        n_workers = _check_roles(config, mode, facts, sizes)
    any_workers.check(config.train, n_workers)


def first(sizes: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return how many of the first ``n`` ranks are on each node, from all ranks of each; nodes without any are left
    out."""
    found: list[int] = []
    for size in sizes:
        found.append(min(size, n - sum(found)))
    return tuple(size for size in found if size)


def _check_roles(config: Config, mode: Mode, facts: Facts, sizes: tuple[int, ...]) -> int:
    """Raise UserError if ranks, that many on each node, cannot run a config; return the number of workers."""
    roles = roles_of(config, mode.traits, sizes)
    checks.check_size(roles.n_workers, facts)
    if roles.n_ranks > 1:
        mode.check(roles)
    checks.check_slow_rank(config.fault, tuple(range(sum(sizes))) if config.parallel.is_cut else roles.workers)
    return roles.n_workers


def check_first(judged: Judged, sizes: tuple[int, ...]) -> None:
    """Raise UserError if a job, of so many ranks on each node, cannot begin with ``elastic.ranks``. Rank 0 calls."""
    at_first = judged.config.elastic.ranks
    if at_first is not None and at_first > sum(sizes):
        raise UserError(
            f"elastic.ranks must be at most the ranks of the job, {sum(sizes)}, got {at_first}; lower it, or start "
            "more ranks"
        )
    if at_first is not None:
        check_ranks(judged, first(sizes, at_first))


def check_ranks(judged: Judged, sizes: tuple[int, ...]) -> None:
    """Raise UserError if other ranks, that many on each node, cannot go on with a run. Rank 0 calls."""
    n_workers = _check_roles(judged.config, sync.make(judged.choices["sync"]), judged.facts, sizes)
    any_workers.check(judged.config.train, n_workers)
