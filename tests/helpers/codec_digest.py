"""A hash of what all codecs send and decode: ``python -m tests.helpers.codec_digest`` prints it."""

import hashlib

import numpy as np

from psframe.collectives.codecs import TABLE
from psframe.config.registry import load

F = np.float32
MAKE = {name: load("codec", TABLE, name) for name in TABLE}


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, F)


def encode(codec, x):
    """Return the payload of ``x``; of what lay there before nothing is left."""
    out = np.full(codec.n_bytes, 0xA5, np.uint8)
    codec.encode(x, out)
    return out


def digest():
    """Return a hash of payloads and sums, of numbers of all magnitudes."""
    hashed = hashlib.sha256()
    for size in (33, 5003):
        for name, make in MAKE.items():
            codec, total = make(size, np.zeros), numbers(9, size)
            for step in range(4):
                payload = encode(codec, numbers(step, size) * F(10) ** (F(5) * numbers(step + 100, size)))
                codec.add(payload, total)
                hashed.update(name.encode() + payload.tobytes() + total.tobytes())
    return hashed.hexdigest()


if __name__ == "__main__":
    print(digest())
