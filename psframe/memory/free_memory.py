"""How much memory a node has left, by what the kernel calls available and by every cgroup that this process is in."""

import os
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psframe.memory import cgroups
from psframe.memory.sysfs import Tree

MACHINE = (0, 0)  # in the place of a cgroup
PROCESS, SELF = -1, int.from_bytes(os.urandom(6), "big")  # in the place of a cgroup that no other process is in
MOST_BYTES = 2**63 - 1


@dataclass(frozen=True)
class Room:
    """What can still be taken under one limit.

    Attributes
    ----------
    group : (int, int)
        Version and number of its cgroup, the same on all ranks of a machine that are in it, or ``MACHINE``.
    left : int
        Bytes that can be taken now; 0 where more than the limit is taken.
    limit : str
        The cgroup's file and what it says, and where it is: "" of the machine.
    """

    group: tuple[int, int]
    left: int
    limit: str = ""

    def __str__(self) -> str:
        return f"{self.left:,}" + (f" by {self.limit}" if self.limit else "")


def rooms(root: str | Path = "/") -> list[Room]:
    """Return what can be taken now: of the machine, and by each limit of this process's cgroups.

    Files are read below ``root``, a running machine's ``/`` or a captured one; they never make it raise.
    """
    tree = Tree(root)
    found = [_of_machine(tree)]
    for allowed in cgroups.memory(tree):
        group = allowed.group
        said = f"{allowed.file}={allowed.limit:,} of the cgroup /{group.place}"
        found.append(Room((group.version, group.number), max(0, allowed.limit - allowed.taken), said))
    return found + _of_process(tree) if os.fspath(root) == "/" else found


def _of_machine(tree: Tree) -> Room:
    shown = re.search("^MemAvailable:[ \t]*([0-9]{1,15}) kB", tree.text("proc/meminfo") or "", re.M)
    return Room(MACHINE, int(shown[1]) * 1024 if shown else MOST_BYTES)


def _of_process(tree: Tree) -> list[Room]:
    """Return what this process's own limit leaves of its address space, where it has one."""
    limit, sizes = resource.getrlimit(resource.RLIMIT_AS)[0], (tree.text("proc/self/statm") or "").split()
    if limit == resource.RLIM_INFINITY or not sizes or not sizes[0].isdecimal():
        return []
    left = limit - int(sizes[0]) * resource.getpagesize()
    return [Room((PROCESS, SELF), max(0, left), f"RLIMIT_AS={limit:,} (ulimit -v)")]


def available(root: str | Path = "/") -> Room:
    """Return what can be taken now under the limit that leaves least; written out, it names that limit."""
    return min(rooms(root), key=lambda room: room.left)


def machine_bytes(root: str | Path = "/") -> int:
    """Return the bytes that the machine has left, whatever this process's cgroups allow it of them."""
    return _of_machine(Tree(root)).left


def available_bytes(root: str | Path = "/") -> int:
    """Return the bytes that can be taken now: what the kernel calls available, or less where a cgroup allows less."""
    return available(root).left


def overdrawn(wanted: Sequence[int], of_ranks: Sequence[Sequence[Room]]) -> tuple[Room, list[int]] | None:
    """Return the limit that is exceeded most, and the ranks that are under it; None where all are kept.

    Ranks of a machine may share a cgroup or have one each: what a limit leaves is for those that are under it.

    Parameters
    ----------
    wanted : sequence of int
        The bytes that each rank of one machine is to take.
    of_ranks : sequence of sequence of Room
        What :func:`rooms` is to each.
    """
    least: dict[tuple[int, int], Room] = {}
    under: dict[tuple[int, int], set[int]] = {}
    for rank, found in enumerate(of_ranks):
        for room in found:
            if room.group not in least or room.left < least[room.group].left:
                least[room.group] = room
            under.setdefault(room.group, set()).add(rank)
    excess = {group: sum(wanted[rank] for rank in under[group]) - least[group].left for group in least}
    worst = max(excess, key=lambda group: excess[group], default=MACHINE)
    return (least[worst], sorted(under[worst])) if excess.get(worst, 0) > 0 else None
