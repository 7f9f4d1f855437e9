"""Traits of a collective (:class:`Traits`): its properties that follow from the config alone."""

from dataclasses import dataclass, replace

from psframe.config.registry import Choice


@dataclass(frozen=True)
class Traits:
    """Properties of a collective that other parts may read before there are ranks and memory; immutable.

    Attributes
    ----------
    supports_tree_sum : bool
        True if ``BaseCollective.mean_of`` computes every mean over all workers, and so can follow the order of a tree.
    exact : bool
        True if means are of the gradients themselves, not of their lossy encodings.
    moves_data : bool
        True if every rank waits for the data of the others, so that none is a step ahead.
    supports_sharding : bool
        True if the parameters can be divided among several servers; not inherited by a user's own subclass.
    broadcasts_any_size : bool
        True if ``broadcast`` takes vectors of other lengths than the arena's, as parameters in bfloat16 have.
    keeps_tensors : bool
        True if segments end only where ``size``, an ``Extent``, allows; not inherited by a user's own subclass.
    """

    supports_tree_sum: bool = False
    exact: bool = True
    moves_data: bool = True
    supports_sharding: bool = False
    broadcasts_any_size: bool = False
    keeps_tensors: bool = False


def of_choice(choice: Choice) -> Traits:
    """Return the traits of the collective that a config chose; the defaults for a user's own without traits."""
    traits: Traits = getattr(choice.make, "traits", Traits())
    declared = "traits" in getattr(choice.make, "__dict__", {})
    return replace(
        traits,
        exact=traits.exact and choice.arguments.get("compression", "none") == "none",
        supports_sharding=traits.supports_sharding and declared,
        keeps_tensors=traits.keeps_tensors and declared,
    )
