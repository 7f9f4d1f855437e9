"""Strategies that a config may name, which say what they were made of; and one that is none."""

from psframe.config.registry import Count, Fraction


def own(given, *, size: Count, share: Fraction = 0.5, shape: tuple[int, ...] = (1, 2), name: str | None = None):
    return given, size, share, shape, name


class Own:
    def __init__(self, *, size: Count = 3):
        self.size = size


not_callable = 3
