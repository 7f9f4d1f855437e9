"""Frame of single-process commands (:func:`guarded`): a mistake is reported once, a signal ends all processes."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

from psframe.cluster import mpirun
from psframe.errors import sentence


def guarded(body: Callable[[], int]) -> int:
    """Run ``body``; return the exit status: its own, 2 for a user's mistake, or 128 + the number of a signal.

    SIGTERM is raised as KeyboardInterrupt, so that started processes end, too, as with Ctrl-C. Under a launcher, which
    few of these commands are for, only the node's first rank reports.
    """
    number = int(signal.SIGINT)

    def leave(asked: int, frame: FrameType | None) -> None:
        nonlocal number
        number = asked
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    try:
        return body()
    except Exception as error:
        if not (message := sentence(error)):
            raise
        if mpirun.speaks():
            print(f"psframe: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + number
