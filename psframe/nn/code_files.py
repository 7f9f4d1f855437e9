"""Compiled code on disk (:class:`Code`), in files that several processes may write at once (:class:`CodeFiles`).

Numba numbers the files of a function's code in an index. Two processes that compile at once may take the same number
for different types, and from then on one's code is loaded for the other's arguments: results are wrong, and nothing
says so. Ranks of a pipeline compile at once, as do jobs that share a folder.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

from psframe.nn import compiler_data

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


class Code(FunctionCache):
    """The code of one function for all types, as Numba asks for it.

    Raises
    ------
    RuntimeError
        There is no folder that this process may write to.
    """

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the code for a signature; None if it must be compiled, for which Numba's data are loaded then.

        Numba loads them first in any case, which is an eighth of the CPU time of a rank's start.
        """
        rtsys.initialize(target)
        found = self._load_overload(signature, target)
        if found is None:
            compiler_data.load()
        return found
