"""Process limits (``ulimit``) too low for a job (:class:`Limit`): checked before MPI starts, named when one is reached.

MPI and BLAS end a process that reaches one with messages of their own, before Python can report it.
"""

import errno
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import strerror
from pathlib import Path

INFINITE = resource.RLIM_INFINITY
LEAST_VIRTUAL = 640 << 20  # bytes of address space of a rank's imports and MPI, before a model
LEAST_DATA = 160 << 20  # bytes of these that are writable
LEAST_FILES, FILES_OF_RANK = 36, 2  # open files of a node's first rank: a base, and more for each rank of the node
LEAST_FILE = 8 << 20  # bytes of a file: MPI shares memory between ranks through files

OWN, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
NO_THREADS = (
    "a rank must be able to start threads, got a machine that lets it start none; raise the number of processes "
    "that its cgroup allows (pids.max), or give train.threads=1"
)


@dataclass(frozen=True)
class Limit:
    """A limit, its option and unit (bytes) in ``ulimit``, and the minimum for ``n`` ranks of a node (``least(n)``)."""

    number: int
    name: str
    what: str
    option: str
    unit: int
    least: Callable[[int], int]
    give: str

    def told(self, n_here: int = 1, read: Callable[[int], tuple[int, int]] = resource.getrlimit) -> str:
        """Return a message if it is too low for ``n_here`` ranks on this node, else ""."""
        soft = read(self.number)[0]
        minimum = self.least(n_here)
        if soft == INFINITE or soft >= minimum:
            return ""
        return self._sentence(f"at least {self._shown(minimum)}", soft)

    def met(self, read: Callable[[int], tuple[int, int]] = resource.getrlimit) -> str:
        """Return the message for reaching it, "" if it is unlimited."""
        soft = read(self.number)[0]
        return "" if soft == INFINITE else self._sentence("enough for this job", soft)

    def _shown(self, value: int) -> str:
        return f"{value // self.unit:,}{' kB' if self.unit > 1 else ''}"

    def _sentence(self, rule: str, soft: int) -> str:
        return (
            f"{self.what} ({self.name}) must be {rule}, got {self._shown(soft)}; run "
            f"`ulimit {self.option} {self.give}` before, on every node, or ask who set that limit"
        )


VIRTUAL = Limit(
    resource.RLIMIT_AS, "RLIMIT_AS", "the address space that a rank may have", "-v", 1024, lambda _: LEAST_VIRTUAL,
    "unlimited",
)  # fmt: skip
DATA = Limit(
    resource.RLIMIT_DATA, "RLIMIT_DATA", "the memory that a rank may write to", "-d", 1024, lambda _: LEAST_DATA,
    "unlimited",
)  # fmt: skip
FILES = Limit(
    resource.RLIMIT_NOFILE, "RLIMIT_NOFILE", "the files that a rank may have open", "-n", 1,
    lambda n: LEAST_FILES + FILES_OF_RANK * n, "1024",
)  # fmt: skip
FILE = Limit(
    resource.RLIMIT_FSIZE, "RLIMIT_FSIZE", "the size of a file that a rank may write", "-f", 1024,
    lambda n: LEAST_FILE, "unlimited",
)  # fmt: skip
PROCESSES = Limit(
    resource.RLIMIT_NPROC, "RLIMIT_NPROC", "the processes and threads that a user may have", "-u", 1, lambda _: 0,
    "unlimited",
)  # fmt: skip


def check(n_here: int) -> str:
    """Return a message on the first limit too low for ``n_here`` ranks on this node, "" if all suffice."""
    return next((message for limit in (VIRTUAL, DATA, FILES, FILE) if (message := limit.told(n_here))), "")


def cgroup_is_full(own: Path = OWN, root: Path = CGROUPS) -> bool:
    """Return True if this process's cgroup, or one around it, has all the tasks that it may have (pids.max)."""
    with suppress(OSError, StopIteration):
        named = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
        folder = root / named[4:].lstrip("/")
        for each in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # of the topmost, or without a limit
                if int((each / "pids.current").read_text()) >= int((each / "pids.max").read_text()) - 1:
                    return True
    return False


def met(error: BaseException) -> str:
    """Return a message for an error that a limit of this process or its machine explains, "" for any other."""
    number, text = getattr(error, "errno", None), str(error).lower()

    def is_one(code: int) -> bool:
        # the dynamic loader, and so an ImportError, gives the text without the errno
        return number == code or (isinstance(error, ImportError) and strerror(code).lower() in text)

    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return VIRTUAL.met() or ("" if cgroup_is_full() else PROCESSES.met()) or NO_THREADS
    if is_one(errno.EMFILE):
        return FILES.met()
    if is_one(errno.EFBIG):
        return FILE.met()
    if is_one(errno.ENOMEM) or isinstance(error, MemoryError) or "failed to map segment" in text:
        return VIRTUAL.met() or DATA.met()
    return ""
