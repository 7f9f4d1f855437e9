"""Verdict on a config without ranks (:func:`check`), by the checks that a plan and the start of a run make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from psframe.cluster.roles import Roles
from psframe.collectives.compression import codec_maker
from psframe.config import registry
from psframe.config.placement_spec import BY_TENSOR, PATTERNS
from psframe.memory import role_placement
from psframe.memory.allocator import Allocator
from psframe.memory.by_tensor import ROLES as WITH_TENSORS
from psframe.memory.tensor_names import Names
from psframe.nn.network import Network
from psframe.nn.workspace import GRADIENTS, HELD, KEPT, SCRATCH
from psframe.record import run_dir
from psframe.sync import stores
from psframe.train.plan import combinations, sections
from psframe.train.plan.combination import Combination
from psframe.train.plan.judged import Judged, check_first, judge, roles_of

T = TypeVar("T")

#: what a start over ranks checks besides
LEFT = ("MPI", "memory and where it lies", "several nodes", "what samples hold", "the run's folder")


@dataclass(frozen=True)
class Counted:
    """Ranks of one node that are only counted (:class:`psframe.train.plan.judged.Ranks`); () is an unknown number."""

    sizes: tuple[int, ...]
    rank: int = 0

    def run_on_root(self, body: Callable[[], T]) -> T:
        return body()

    run_on_nodes = run_on_all = run_on_root


@dataclass(frozen=True)
class Verdict:
    """Verdict on a sound config.

    Attributes
    ----------
    judged : Judged
    network : Network
        The whole network, without memory.
    roles : Roles or None
        Roles of all ranks, or of those with the same part of a network that is cut; None without their number.
    left : list of str
        What only ranks can tell.
    """

    judged: Judged
    network: Network
    roles: Roles | None
    left: list[str]


def check(path: str, overrides: Sequence[str], n_ranks: int | None = None) -> Verdict:
    """Read a config, look at its dataset, build its network without memory, and check all that needs no ranks.

    Parameters
    ----------
    n_ranks : int, optional
        Ranks of the job, on one node. Without it, several are assumed, and what depends on their number is left.

    Raises
    ------
    UserError
        For the first mistake.
    """
    ranks = Counted((n_ranks,) if n_ranks else ())
    judged = judge(ranks, path, overrides)
    if ranks.sizes:
        check_first(judged, ranks.sizes)
    asked = judged.asked
    for role, place in sections.PLACES.items():
        role_placement.made(judged.choices[place], role)
    judged.check_cut()
    network = judged.network()
    judged.check_tensors(network.whole)
    _check_patterns(judged, network)
    combinations.check(asked.of(network))
    if folder := run_dir.named(judged.config.checkpoint.resume):
        run_dir.config_to_continue(folder, judged.resolved)
    if not asked.alone:
        _check_named_inside(judged)
    roles = roles_of(judged.config, asked.traits, ranks.sizes) if ranks.sizes else None
    return Verdict(judged, network, roles, _left(asked, n_ranks))


def _check_patterns(judged: Judged, network: Network) -> None:
    """Raise UserError if a tensor's placement is for none that the network can have."""
    parameters = list(network.whole.slots)
    layers = [f"{index}.{layer.kind}" for index, layer in network.active]
    activations = [f"{layer}.{use}" for layer in layers for use in (KEPT, SCRATCH)]
    tensors = {"activations": [*activations, "input", KEPT, SCRATCH, GRADIENTS, HELD]}
    for role in WITH_TENSORS:
        choice = judged.choices[sections.PLACES[role]]
        if choice.name == BY_TENSOR:
            Names(tensors.get(role, parameters)).check(f"placement.{role}", choice.arguments[PATTERNS])


def _left(asked: Combination, n_ranks: int | None) -> list[str]:
    """Return what only ranks can tell of a config."""
    strategies = [asked.mode, *([asked.collective.name] if asked.collective and asked.traits.exchanges else [])]
    own = [f"what {name} asks of its ranks" for name in strategies if ":" in name and not asked.alone]
    return [*(["their number (give -n)"] if n_ranks is None else []), *LEFT, *own]


def _check_named_inside(judged: Judged) -> None:
    """Raise UserError if psframe's own strategies name a store or codec that is none."""
    sync, collective, traits = judged.choices["sync"], judged.choices["collective"], judged.asked.traits
    if ":" not in sync.name and traits.store not in (None, "auto"):
        registry.load("sync.store", stores.TABLE, traits.store)
    codec = collective.arguments.get("compression", "none")
    if ":" not in collective.name and traits.exchanges and codec != "none":
        codec_maker(codec, Allocator())
