"""Calls that a disk may hold up for ever, as a network disk whose server is gone (:class:`Disks`)."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class Disks:
    """Asks disks in threads, each for a time; one that has not answered is asked no more until it has."""

    def __init__(self) -> None:
        self._asked: dict[str, Thread] = {}

    def ask(self, folder: str, call: Callable[[], T], otherwise: T, seconds: float) -> T:
        """Return what ``call`` returns, which looks at ``folder``; ``otherwise`` if it is late, or raises OSError."""
        last = self._asked.get(folder)
        if last and last.is_alive():
            return otherwise
        found: list[T] = []

        def answer() -> None:
            with suppress(OSError, ValueError):  # a path may be none
                found.append(call())

        thread = Thread(target=answer, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no thread
            answer()
        else:
            self._asked[folder] = thread
            thread.join(seconds)
        return found[0] if found else otherwise
