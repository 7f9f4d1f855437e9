"""Phases of a step in which activations are used (:func:`windows`), for plans that move them in between."""

from collections.abc import Collection

from psframe.memory.tensor_names import place_of
from psframe.memory.tier_options import Window
from psframe.nn.network import Network
from psframe.nn.workspace import KEPT


def windows(network: Network, n_samples: int, known: Collection[str]) -> dict[str, Window]:
    """Return the window of each activation that lives from its layer's forward to its backward pass, by place.

    None at all where passes of a step take turns, or where the rank has some of the layers. Layers that a batch
    passes in parts are left out: in each phase all of them are used.

    Parameters
    ----------
    network : Network
        Bound to its memory.
    n_samples : int
        Samples of a step.
    known : collection of str
        Places that this rank has.
    """
    if n_samples > network.max_batch or network.n_kept > 1 or network.own != slice(0, len(network.active)):
        return {}
    places = [place_of("activations", f"{index}.{layer.kind}.{KEPT}") for index, layer in network.active]
    kept = [number for number, place in enumerate(places) if place in known]
    alone = set[int]()  # layers in a phase of their own
    for section in network.sections:
        if section.part >= network.max_batch:
            alone |= set(range(section.begin, section.begin + len(section.layers)))
    ends = [*kept[1:], len(places) - 1]
    pairs = zip(kept, ends, strict=True) if kept else ()
    return {places[first]: Window(first, last, len(places)) for first, last in pairs if first in alone}
