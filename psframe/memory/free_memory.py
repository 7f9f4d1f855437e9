"""Free memory of a machine, from the kernel's MemAvailable and every limit of this process (:func:`rooms`)."""

import os
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psframe.memory import cgroups
from psframe.memory.sysfs import Tree

MACHINE = (0, 0)  # stands for a cgroup of all processes
PROCESS, SELF = -1, int.from_bytes(os.urandom(6), "big")  # stand for a cgroup of this process alone
MAX_BYTES = 2**63 - 1


@dataclass(frozen=True)
class Room:
    """Memory left under one limit.

    Attributes
    ----------
    group : (int, int)
        Version and inode of its cgroup, the same on all its ranks of a machine; or ``MACHINE``; or (PROCESS, SELF).
    left : int
        Bytes that can be allocated now; 0 if the limit is exceeded.
    limit : str
        The limit's file or name, value and place; "" for the machine.
    """

    group: tuple[int, int]
    left: int
    limit: str = ""

    def __str__(self) -> str:
        return f"{self.left:,}" + (f" by {self.limit}" if self.limit else "")


def rooms(root: str | Path = "/") -> list[Room]:
    """Return the memory left on the machine, and under each limit of this process's cgroups and its address space.

    Files are read below ``root``, a running machine's ``/`` or a captured one; missing or malformed ones never raise.
    """
    tree = Tree(root)
    free = [_of_machine(tree)]
    for allowed in cgroups.memory(tree):
        group = allowed.group
        limit = f"{allowed.file}={allowed.limit:,} of the cgroup /{group.place}"
        free.append(Room((group.version, group.number), max(0, allowed.limit - allowed.taken), limit))
    return free + _of_process(tree) if os.fspath(root) == "/" else free


def _of_machine(tree: Tree) -> Room:
    match = re.search("^MemAvailable:[ \t]*([0-9]{1,15}) kB", tree.text("proc/meminfo") or "", re.M)
    return Room(MACHINE, int(match[1]) * 1024 if match else MAX_BYTES)


def _of_process(tree: Tree) -> list[Room]:
    """Return the address space left under this process's RLIMIT_AS; [] without such a limit."""
    limit, sizes = resource.getrlimit(resource.RLIMIT_AS)[0], (tree.text("proc/self/statm") or "").split()
    if limit == resource.RLIM_INFINITY or not sizes or not sizes[0].isdecimal():
        return []
    left = limit - int(sizes[0]) * resource.getpagesize()
    return [Room((PROCESS, SELF), max(0, left), f"RLIMIT_AS={limit:,} (ulimit -v)")]


def available(root: str | Path = "/") -> Room:
    """Return the memory left under the tightest limit; ``str`` of it names that limit."""
    return min(rooms(root), key=lambda room: room.left)


def machine_bytes(root: str | Path = "/") -> int:
    """Return the bytes left on the machine, regardless of this process's cgroups."""
    return _of_machine(Tree(root)).left


def available_bytes(root: str | Path = "/") -> int:
    """Return the bytes that can be allocated now: MemAvailable, or less if another limit leaves less."""
    return available(root).left


def overdrawn(wanted: Sequence[int], of_ranks: Sequence[Sequence[Room]]) -> tuple[Room, list[int]] | None:
    """Return the limit exceeded by most bytes, and the ranks under it; None if all limits are kept.

    Ranks of a machine may share a cgroup or have one each: a limit is compared with the sum over the ranks under it.

    Parameters
    ----------
    wanted : sequence of int
        The bytes that each rank of one machine will allocate.
    of_ranks : sequence of sequence of Room
        The result of :func:`rooms` on each of them.
    """
    tightest: dict[tuple[int, int], Room] = {}
    under: dict[tuple[int, int], set[int]] = {}
    for rank, of_rank in enumerate(of_ranks):
        for room in of_rank:
            if room.group not in tightest or room.left < tightest[room.group].left:
                tightest[room.group] = room
            under.setdefault(room.group, set()).add(rank)
    excess = {group: sum(wanted[rank] for rank in under[group]) - tightest[group].left for group in tightest}
    worst = max(excess, key=lambda group: excess[group], default=MACHINE)
    return (tightest[worst], sorted(under[worst])) if excess.get(worst, 0) > 0 else None
