"""Job of virtual ranks (:class:`Job`): the nodes, and what messages and collectives cost (:class:`Free`: nothing)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psframe.virtual.patterns import ByNode, Pattern


class Free:
    """Costs of ranks whose time does not matter: all is there at once."""

    def sends(self, source: int, target: int, n_bytes: int, then: Callable[[], None] | None = None) -> None:
        """Charge the current rank for a message, or an access to memory of another rank.

        It waits until that is there; with ``then``, which is called at that time, it goes on.
        """
        if then:
            then()

    def comes(self, pattern: Pattern, sizes: ByNode, here: int, brought: ByNode, then: Callable[[], None]) -> None:
        """Call ``then`` when all of a collective is in node ``here`` that one of its ranks reads.

        ``sizes`` and ``brought`` are as in :func:`psframe.virtual.patterns.flows`.
        """
        then()

    def collects(self, pattern: Pattern, sizes: ByNode, brought: ByNode) -> None:
        """Charge the current rank, at its end, for what it does in the same collective, and for the latencies."""


@dataclass(frozen=True)
class Job:
    """A job of virtual ranks.

    Attributes
    ----------
    node_of : sequence of int
        Node of each rank of the scheduler.
    site : callable
        Makes a rank's :class:`psframe.cluster.joining.Site`.
    costs : Free
        What messages and collectives cost, by numbers of ranks in the scheduler.
    """

    node_of: Sequence[int]
    site: Callable[[Any], Any]
    costs: Free = field(default_factory=Free)
