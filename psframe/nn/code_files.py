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
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar

from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

from psframe.nn import compiler_data

PATIENCE_S, PAUSE_S = 10.0, 0.02  # an index is written in a millisecond


class CodeFiles(IndexDataCacheFile):
    """The files of one function's code, each named after the types and the CPU that it is for."""

    def save(self, key: Any, data: Any) -> None:
        """Write the code for ``key``, and then its name into the index; on a full disk, it stays in memory alone."""
        name = self._name(key)
        with suppress(OSError):
            self._save_data(name, data)
            with self._alone():
                self._save_index({**self._load_index(), key: name})

    def load(self, key: Any) -> Any:
        """Return the code for ``key``; None if there is none, or it is damaged, and must be compiled."""
        with suppress(Exception):  # which one a damaged pickle raises depends on the damage
            return super().load(key)

    def has(self, key: Any) -> bool:
        """Return True if there is code for ``key``."""
        name = self._load_index().get(key)
        return bool(name) and os.path.exists(self._data_path(name))

    def claim(self, key: Any, patience_s: float) -> int | None:
        """Return the open file whose lock says that this process compiles for ``key``; None if another does.

        The other one is waited for as long as that: a process that was stopped keeps its lock. OSError where there can
        be no lock.
        """
        os.makedirs(self._cache_path, exist_ok=True)
        while True:
            with ExitStack() as closing:
                claimed = os.open(self._claim_path(key), os.O_CREAT | os.O_RDWR, 0o666)
                closing.callback(os.close, claimed)
                if not _lock(claimed, patience_s):
                    return None
                with suppress(FileNotFoundError):  # whoever had it before has released it: a new file is made
                    if os.path.samestat(os.fstat(claimed), os.stat(self._claim_path(key))):
                        closing.pop_all()
                        return claimed

    def release(self, key: Any, claimed: int) -> None:
        """Let others compile for ``key``, or load what is there now."""
        with suppress(OSError):
            os.unlink(self._claim_path(key))
        with suppress(OSError):
            fcntl.flock(claimed, fcntl.LOCK_UN)  # also of what was forked in the meantime
        os.close(claimed)

    def _load_index(self) -> dict[Any, str]:
        with suppress(Exception):
            return super()._load_index()
        return {}

    def _claim_path(self, key: Any) -> str:
        return f"{self._data_path(self._name(key))}.claim"

    def _name(self, key: Any) -> str:
        return str(self._data_name(int(hashlib.sha256(repr(key).encode()).hexdigest()[:16], 16)))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from changing the index, where a lock is to be had in time.

        Otherwise an entry may be lost, and its code is compiled again; a process that was stopped keeps its lock.
        """
        folder = os.open(self._cache_path, os.O_RDONLY)
        try:
            with suppress(OSError):
                _lock(folder, PATIENCE_S)
            yield
        finally:
            os.close(folder)


def _lock(file: int, patience_s: float) -> bool:
    """Wait for the lock of an open file or folder, for so long; return False if another has it still.

    Raises OSError where there are no locks.
    """
    until = time.monotonic() + patience_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_S)


class Code(FunctionCache):
    """The code of one function for all types, as Numba asks for it.

    Raises
    ------
    RuntimeError
        There is no folder that this process may write to.

    Attributes
    ----------
    patience_s : float
        Longest wait for another process that compiles the same; 0 in a process that has waited in vain.
    """

    patience_s: ClassVar[float] = 120.0

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())
        self._claims: dict[Any, int] = {}  # open files, of what this process compiles

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the code for a signature; None if this process must compile it.

        Only a process that compiles needs Numba's data. Numba loads them in any case, an eighth of a rank's CPU time at
        start.
        """
        rtsys.initialize(target)
        found = self._load_overload(signature, target) or self._awaited(signature, target)
        if found is None:
            compiler_data.load()
        else:
            self.release(signature, target)
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write the code for a signature, and let others know."""
        try:
            super().save_overload(signature, data)
        finally:
            self._release(self._index_key(signature, data.codegen))

    def is_to_be_compiled(self, signature: Any, target: Any) -> bool:
        """Return True if there is no code for a signature, and claim it, unless another process has.

        The caller compiles then; it is released when that ends.
        """
        key = self._index_key(signature, target.codegen())
        return not self._cache_file.has(key) and self._claimed(key, 0) is True

    def release(self, signature: Any, target: Any) -> None:
        """Let other processes compile for a signature, if this one has claimed it."""
        self._release(self._index_key(signature, target.codegen()))

    def _awaited(self, signature: Any, target: Any) -> Any:
        """Return what another process has compiled in the meantime; None if this one must."""
        key = self._index_key(signature, target.codegen())
        waits = self._claimed(key, 0) is False
        if waits:
            self._claimed(key, self.patience_s)
        found = self._load_overload(signature, target)
        if found is None and waits:  # it was stopped, or cannot write: others are not waited for, and need not wait
            Code.patience_s = 0.0
            self._release(key)
        return found

    def _claimed(self, key: Any, patience_s: float) -> bool | None:
        """Return True if this process has claimed a signature, or False if another still has; None without locks."""
        if key not in self._claims:
            try:
                claimed = self._cache_file.claim(key, patience_s)
            except OSError:
                return None
            if claimed is None:
                return False
            self._claims[key] = claimed
        return True

    def _release(self, key: Any) -> None:
        claimed = self._claims.pop(key, None)
        if claimed is not None:
            self._cache_file.release(key, claimed)


class _Failures(event.Listener):
    """Releases what could not be compiled; Numba tells its cache of what could be."""

    def on_start(self, event: event.Event) -> None:
        """Do nothing."""

    def on_end(self, event: event.Event) -> None:
        """Release a signature that has no code now."""
        dispatcher = event.data["dispatcher"]
        code, signature = dispatcher._cache, event.data["args"]
        if isinstance(code, Code) and signature not in dispatcher.overloads:
            code.release(signature, dispatcher.targetctx)


event.register("numba:compile", _Failures())
