"""Files of compiled code that several processes may write at once (:class:`CodeFiles`).

Numba numbers the files of a function's code in an index. Two processes that compile at once may take the same number
for different types, and from then on one's code is loaded for the other's arguments: results are wrong, and nothing
says so. Ranks of a pipeline compile at once, as do jobs that share a folder.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba.core.caching import IndexDataCacheFile

PATIENCE_S, PAUSE_S = 10.0, 0.02  # an index is written in a millisecond


class CodeFiles(IndexDataCacheFile):
    """The files of one function's code, each named after the types and the CPU that it is for."""

    def save(self, key: Any, data: Any) -> None:
        """Write the code for ``key``, and then its name into the index; on a full disk, it stays in memory alone."""
        name = self._data_name(int(hashlib.sha256(repr(key).encode()).hexdigest()[:16], 16))
        with suppress(OSError):
            self._save_data(name, data)
            with self._alone():
                self._save_index({**self._load_index(), key: name})

    def load(self, key: Any) -> Any:
        """Return the code for ``key``; None if there is none, or it is damaged, and must be compiled."""
        with suppress(Exception):  # which one a damaged pickle raises depends on the damage
            return super().load(key)

    def _load_index(self) -> dict[Any, str]:
        with suppress(Exception):
            return super()._load_index()
        return {}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from changing the index, where a lock is to be had in time.

        Otherwise an entry may be lost, and its code is compiled again; a process that was stopped keeps its lock.
        """
        folder = os.open(self._cache_path, os.O_RDONLY)
        try:
            with suppress(OSError):
                _lock(folder)
            yield
        finally:
            os.close(folder)


def _lock(folder: int) -> None:
    """Wait for the lock of an open folder, for so long; raise OSError where it cannot be locked."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(PAUSE_S)


def shared(function: Any) -> Any:
    """Return a jitted ``function`` that is cached, with files of this kind in place of Numba's."""
    cache = function._cache
    numbered: Any = getattr(cache, "_cache_file", None)
    if type(numbered) is IndexDataCacheFile:
        cache._cache_file = CodeFiles(cache._cache_path, cache._impl.filename_base, numbered._source_stamp)
    return function
