"""Combination of options that a config asks for (:class:`Combination`), as the rules on what goes together see it."""

from dataclasses import dataclass, replace

from psframe.config.registry import Choice
from psframe.config.schema import Config, Parallel
from psframe.memory.extent import Places
from psframe.nn.network import Network
from psframe.sync.traits import SYNCHRONOUS, Traits


@dataclass(frozen=True)
class Combination:
    """Combination of options that a config asks for.

    Attributes
    ----------
    mode : str
        The sync mode's name, or ``my_module:attr``.
    traits : Traits
        Traits of the mode.
    collective : Choice or None
        None while unknown: rules then ignore it.
    statistic : str
        Name of a tensor with batch statistics; "" if the model has none or is not known yet.
    alone : bool
        True if each rank exchanges with no other (one replica): all modes are then equal.
    cuts : str
        Places at which the optimizer lets vectors be cut.
    meets : str
        Samples that meet in the model, as of a layer; "" if it is not known yet.
    """

    mode: str
    traits: Traits
    config: Config
    collective: Choice | None = None
    statistic: str = ""
    alone: bool = False
    cuts: Places = "anywhere"
    meets: str = ""

    def of(self, network: Network) -> "Combination":
        """Return the same with what the network tells."""
        return replace(self, statistic=network.whole.statistic, meets=network.meets)

    @property
    def effective(self) -> Traits:
        """Traits in effect: those of a synchronous mode if ``alone``."""
        return SYNCHRONOUS if self.alone else self.traits


def spelled(parallel: Parallel) -> str:
    settings = [f"parallel.{key}={n}" for key in ("pipeline", "model") if (n := getattr(parallel, key)) > 1]
    return " and ".join(settings) or "parallel.pipeline=1"
