"""Calls in progress between virtual ranks (:class:`VirtualRequest`)."""

from collections.abc import Callable
from typing import Any

from psframe.virtual.scheduler import Scheduler


class VirtualRequest:
    """Call in progress: :meth:`Test` and :meth:`Wait` end it once ``arrived`` returns something other than None.

    ``require`` raises PeerLost if it cannot end, as a rank is lost that it needs.
    """

    def __init__(
        self,
        ranks: Scheduler,
        key: Any,
        arrived: Callable[[], Any],
        take: Callable[[Any], None],
        require: Callable[[], bool] = lambda: False,
    ):
        self._ranks, self._key, self._arrived, self._take, self._require = ranks, key, arrived, take, require
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
        return self.Test() or self._require()
