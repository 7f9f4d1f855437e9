"""Seconds of an exchange of encoded gradients (:mod:`psframe.collectives.compression`).

``hierarchical`` (:func:`leaders_s`) encodes messages between nodes, on one leader each, after backward. ``buffer``
(:func:`buffer_s`) encodes every worker's messages; an allreduce does so twice, for the gradients and for the sums, and
parameters return unencoded.
"""

from psframe.predict.exchange import Node
from psframe.predict.job import Codec, ExchangePlan


def leaders_s(way: ExchangePlan, codec: Codec) -> float:
    """Return the seconds of a codec under ``hierarchical``, in addition to the exchange of a node."""
    n = way.nodes
    if codec.sent_once(n):
        return codec.encode_s + n * codec.add_s
    return (1 + 1 / n) * codec.encode_s + 2 * codec.add_s


def buffer_s(node: Node, way: ExchangePlan, n_bytes: float, codec: Codec, moved_s: float | None) -> float:
    """Return the seconds of an exchange and update inside a node, over ``buffer``.

    Parameters
    ----------
    n_bytes : float
        Bytes of the parameters.
    codec : Codec
        Codec of the parameters' gradients, at the target's speed.
    moved_s : float or None
        Measured seconds of an allreduce and update of as many bytes as a payload has; None if not measured.
    """
    p, payload = node.ranks, codec.share * n_bytes
    if way.mode == "allreduce":
        coded = (1 + 1 / way.ranks) * codec.encode_s + 2 * codec.add_s
        if moved_s is None:
            moved_s = 2 * node.turns_s(payload) + node.update_s(payload, p) + 2 * node.call_s
        return coded * node.share(p) + moved_s + node.update_s(n_bytes - payload, p)
    summed = node.gather_s(payload) + way.n_workers * codec.add_s + node.update_s(n_bytes, 1)
    return codec.encode_s * node.share(p) + summed + node.bcast_s(n_bytes) + 2 * node.call_s
