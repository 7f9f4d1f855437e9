"""Clock of a run's ranks (:data:`CLOCK`): the machine's, or a virtual one while ranks are simulated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep


class Clock:
    """Time of the rank that calls.

    Attributes
    ----------
    now : callable
        Returns seconds, by default of ``time.perf_counter``.
    sleep : callable
        Lets so many seconds go by.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = perf_counter
        self.sleep: Callable[[float], None] = sleep

    @contextmanager
    def virtual(self, now: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[None]:
        """Tell other time within a context."""
        before = self.now, self.sleep
        self.now, self.sleep = now, sleep
        try:
            yield
        finally:
            self.now, self.sleep = before


CLOCK = Clock()  #: of this process
