"""Memory that a rank will take, and what a step reads and writes there (:class:`Sizes`): counted by a first build."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from psframe.memory.allocator import Allocator
from psframe.memory.tier_options import Window


@dataclass(frozen=True)
class Accesses:
    """Bytes that a rank reads and writes in a step, by place: in memory of its own, and in what its node shares."""

    own: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shared: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """Bytes of this rank by place, all and the private ones; by role, those its node and each of ``SCOPES`` share.

    ``accesses`` are known where a role is placed by a plan, and ``windows``, by place, where activations are.
    """

    by_place: dict[str, int]
    private: dict[str, int]
    shared: dict[str, int]
    within: dict[str, dict[str, int]]
    accesses: Accesses = field(default_factory=Accesses)
    windows: Mapping[str, Window] = field(default_factory=dict)

    @classmethod
    def of(cls, allocator: Allocator, data_bytes: int) -> "Sizes":
        """Return the sizes requested from ``allocator``, plus ``data_bytes`` of data."""
        private = dict(allocator.bytes_by_place)
        for role, memory in allocator.pieces:
            private[role] -= len(memory)
        by_place = Counter(private)
        for place, part in allocator.parts():
            by_place[place] += len(part.memory)
        by_place.update(allocator.beside)
        data = {"data": data_bytes} if data_bytes else {}
        shared = {role: n for role, n in allocator.shared_by_role.items() if n}
        return cls(
            dict(by_place) | data, private, shared, {scope: dict(counts) for scope, counts in allocator.within.items()}
        )
