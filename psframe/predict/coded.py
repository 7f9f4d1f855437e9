"""Seconds of an exchange whose gradients are encoded on their way (:mod:`psframe.collectives.compression`).

``hierarchical`` encodes what goes between nodes, on one leader each, after backward. ``buffer`` encodes what every
worker sends; an allreduce does so twice, of the gradients and of the sums, and parameters come back as they are.
"""

from psframe.predict.exchange import Node
from psframe.predict.job import Codec, Way

FEW = 8  # payloads of all nodes that together are this part of a vector are sent to all, and encoded once


def sent_once(way: Way, codec: Codec) -> bool:
    """Whether every node has the payloads of all, and not a share of them and then all sums."""
    return way.nodes == 2 or (way.nodes - 1) * codec.share <= 1 / FEW


def local_s(node: Node, way: Way, n_bytes: float, codec: Codec, bare_s: float | None) -> float:
    """Return the seconds of an exchange and update inside a node, with those of the codec.

    Parameters
    ----------
    n_bytes : float
        Of the parameters.
    codec : Codec
        Of these, at the target's speed.
    bare_s : float or None
        Seconds of an exchange and update without a codec: of a node through shared memory under ``hierarchical``, of as
        many bytes as a payload has under ``buffer``, where such was measured.
    """
    p, n, payload = node.ranks, way.nodes, codec.share * n_bytes
    if way.collective != "buffer":
        assert bare_s is not None
        if sent_once(way, codec):
            return bare_s + codec.encode_s + n * codec.add_s
        return bare_s + (1 + 1 / n) * codec.encode_s + 2 * codec.add_s
    if way.mode == "allreduce":
        coded = (1 + 1 / way.ranks) * codec.encode_s + 2 * codec.add_s
        if bare_s is None:
            bare_s = 2 * node.turns_s(payload) + node.update_s(payload, p) + 2 * node.call_s
        return coded * node.share(p) + bare_s + node.update_s(n_bytes - payload, p)
    summed = node.gather_s(payload) + way.n_workers * codec.add_s + node.update_s(n_bytes, 1)
    return codec.encode_s * node.share(p) + summed + node.bcast_s(n_bytes) + 2 * node.call_s
