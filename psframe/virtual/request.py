"""Calls in progress between virtual ranks (:class:`VirtualRequest`)."""

from collections.abc import Callable, Sequence
from typing import Any

from psframe.cluster.gates import PeerLost
from psframe.virtual.scheduler import Scheduler


class VirtualRequest:
    """Call in progress: :meth:`Test` and :meth:`Wait` end it once ``arrived`` returns something other than None.

    ``needs`` are the numbers in the scheduler of the ranks that it cannot end without.
    """

    def __init__(
        self,
        ranks: Scheduler,
        key: Any,
        arrived: Callable[[], Any],
        take: Callable[[Any], None],
        needs: Sequence[int] = (),
    ):
        self._ranks, self._key, self._arrived, self._take, self._needs = ranks, key, arrived, take, needs
        self._is_done = False
        self.result: Any = None

    def Test(self) -> bool:
        if not self._is_done:
            self._ranks.point()
            found = self._arrived()
            if found is None:
                return self._ranks.misses(self._key)
            self._is_done = True
            self._take(found)
        return True

    def Wait(self) -> bool:
        self._ranks.until(self._has_come)
        return True

    def _has_come(self) -> bool:
        return self.Test() or require(self._ranks, self._needs)


def require(ranks: Scheduler, numbers: Sequence[int]) -> bool:
    """Return False; raises PeerLost if one of these ranks was killed, or the communicators were revoked."""
    if dead := [number for number in numbers if not ranks.ranks[number].lives]:
        raise PeerLost(f"rank {dead[0]} has died", tuple(dead), True)
    if ranks.is_revoked:
        raise PeerLost("a rank is lost, as another one tells", (), False)
    return False
