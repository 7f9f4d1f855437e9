"""Measurement of a codec's time on this machine, on all ranks at once (:func:`measure`)."""

from collections.abc import Mapping
from time import thread_time
from typing import Any

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.collectives import compression
from psframe.memory.allocator import Allocator

MOST = 1 << 24  # numbers of the measured vector; longer ones are scaled in proportion
ROUNDS = 7


def measure(cluster: Cluster, spec: str | Mapping[str, Any], n_params: int) -> dict[str, Any] | None:
    """Return the fields of :class:`psframe.predict.job.Codec`, means over all ranks; None for ``none``.

    Seconds are CPU time, which excludes other processes on the cores. All ranks must call.
    """
    if spec == "none":
        return None
    compression.warm(spec)
    size = min(n_params, MOST)
    codec = compression.codec_maker(spec, Allocator())(size)
    gradient = np.random.default_rng(0).standard_normal(size, np.float32)
    payload, total = np.zeros(codec.n_bytes, np.uint8), np.zeros(size, np.float32)
    encoded, added = [], []
    cluster.barrier()
    for _ in range(ROUNDS):
        began = thread_time()
        codec.encode(gradient, payload)
        between = thread_time()
        codec.add(payload, total)
        encoded.append(between - began)
        added.append(thread_time() - between)
    means = np.mean(cluster.allgather([np.median(encoded), np.median(added)]), axis=0) * (n_params / size)
    return {
        "name": spec if isinstance(spec, str) else spec["name"],
        "share": codec.n_bytes / (4 * size),
        "encode_s": float(means[0]),
        "add_s": float(means[1]),
    }
