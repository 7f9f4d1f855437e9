"""Traits of a collective (:class:`Traits`): what is known of it from the config alone."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psframe.config.registry import Choice


@dataclass(frozen=True)
class Traits:
    """What other parts may ask of a collective before there are ranks and memory; nobody changes it.

    Attributes
    ----------
    by_tree : bool
        It takes every mean over all workers by ``Base.mean_of``, and so can take it in the order of a tree.
    exact : bool
        Means are those of the numbers given, not of what a codec leaves of them.
    moves_data : bool
        No rank is a step ahead of another, since each waits for the data of the others.
    among_servers : bool
        It can divide the parameters among several servers.
    """

    by_tree: bool = False
    exact: bool = True
    moves_data: bool = True
    among_servers: bool = False


def of_choice(choice: "Choice") -> Traits:
    """Return the traits of a collective that a config chose; a user's own has the plain ones if it says nothing."""
    traits: Traits = getattr(choice.make, "traits", Traits())
    return replace(traits, exact=traits.exact and choice.arguments.get("compression", "none") == "none")
