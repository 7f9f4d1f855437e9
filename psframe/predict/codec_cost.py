"""Seconds of an exchange whose gradients are encoded on their way (:mod:`psframe.collectives.compression`).

``hierarchical`` encodes what goes between nodes, on one leader each, after backward. ``buffer`` encodes what every
worker sends; an allreduce does so twice, of the gradients and of the sums, and parameters come back as they are.
"""

from psframe.predict.exchange import Node
from psframe.predict.job import Codec, Way


def leaders_s(way: Way, codec: Codec) -> float:
    """Return the seconds that a codec takes under ``hierarchical``, beside the exchange of a node."""
    n = way.nodes
    if codec.sent_once(n):
        return codec.encode_s + n * codec.add_s
    return (1 + 1 / n) * codec.encode_s + 2 * codec.add_s


def buffer_s(node: Node, way: Way, n_bytes: float, codec: Codec, moved_s: float | None) -> float:
    """Return the seconds of an exchange and update inside a node, over ``buffer``.

    Parameters
    ----------
    n_bytes : float
        Of the parameters.
    codec : Codec
        Of these, at the target's speed.
    moved_s : float or None
        Seconds of an allreduce and update of as many bytes as a payload has, where that was measured.
    """
    p, payload = node.ranks, codec.share * n_bytes
    if way.mode == "allreduce":
        coded = (1 + 1 / way.ranks) * codec.encode_s + 2 * codec.add_s
        if moved_s is None:
            moved_s = 2 * node.turns_s(payload) + node.update_s(payload, p) + 2 * node.call_s
        return coded * node.share(p) + moved_s + node.update_s(n_bytes - payload, p)
    summed = node.gather_s(payload) + way.n_workers * codec.add_s + node.update_s(n_bytes, 1)
    return codec.encode_s * node.share(p) + summed + node.bcast_s(n_bytes) + 2 * node.call_s
