"""The cgroups that hold this process, and how much they allow of memory and of the CPUs' time, version 1, 2 or both.

A limit holds for all that is below it: a job's, as Slurm sets it, for the group of each task. So every group counts
from the process's own up to the topmost that is mounted. Files never make anything here raise.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from psframe.memory.sysfs import Tree

#: where a controller is mounted if no file says so; of version 2 all are in one place
USUAL = {
    "memory": ("sys/fs/cgroup/memory",),
    "cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"),
}
USUAL_2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")

ABOVE = "hierarchical_"
#: files of a limit and of what is taken, and what memory.stat says of that limit in all groups above it, by version
LIMITS = {
    2: (("memory.max", "memory.current", ""), ("memory.high", "memory.current", "")),
    1: (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", f"{ABOVE}memory_limit"),
        ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", f"{ABOVE}memsw_limit"),
    ),
}
#: what memory.stat calls file pages that are not in use, that are, that are mapped, and the kernel's own caches
RECLAIMED = {
    2: ("inactive_file", "active_file", "file_mapped", "slab_reclaimable"),
    1: ("total_inactive_file", "total_active_file", "total_mapped_file", ""),
}

MOST_PARENTS = 256  # of a group; paths are shorter than 4096 characters
MOST_SEARCHED = 4096  # groups that are looked through for this process
MOST_MOUNT_BYTES = 1 << 24  # hosts of many containers have thousands of mounts
UNLIMITED_BYTES = 1 << 62  # version 1 writes a number like this for no limit

Path = tuple[str, ...]  #: the names on the way from the root of a hierarchy


@dataclass(frozen=True)
class Group:
    """A cgroup that this process is in, or one above it.

    Attributes
    ----------
    place : str
        Its folder, relative to the root that files are read below.
    version : {1, 2}
    is_own : bool
        Whether the process is in this one itself.
    number : int
        Its inode: one group has one number on a machine, in whatever container, under whatever name it is seen.
    """

    place: str
    version: int
    is_own: bool
    number: int


@dataclass(frozen=True)
class Allowance:
    """What one limit of a cgroup allows, and what of that is taken, in bytes; taken is what cannot be reclaimed."""

    group: Group
    file: str
    limit: int
    taken: int


@dataclass(frozen=True)
class _Mount:
    place: str
    version: int
    root: Path  # which group of the hierarchy is shown there
    guessed: bool = False


def memory(tree: Tree) -> list[Allowance]:
    """Return the limits on this process's memory, of its own cgroup and of those above, as far as they are visible."""
    found = [allowance for group in groups(tree, "memory") for allowance in _memory(tree, group)]
    return sorted(found, key=lambda allowance: allowance.file.startswith(ABOVE))  # what names its group is told first


def cpus(tree: Tree) -> dict[tuple[int, int], float]:
    """Return how many CPUs' time each cgroup of this process allows, by version and number of those with a limit."""
    found: dict[tuple[int, int], float] = {}
    for group in groups(tree, "cpu"):
        if group.version == 2:
            words = (tree.text(f"{group.place}/cpu.max") or "").split()
        else:
            words = [(tree.text(f"{group.place}/cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        numbers = [_number(word) for word in words]
        if len(numbers) == 2 and numbers[0] and numbers[1]:  # else "max", or -1
            key = (group.version, group.number)
            found[key] = min(found.get(key, float("inf")), numbers[0] / numbers[1])
    return found


def groups(tree: Tree, controller: str) -> list[Group]:
    """Return the cgroups that hold this process for ``controller``, of each mount the lowest first."""
    own = _own(tree, controller)
    found: dict[str, Group] = {}
    for mount in _mounts(tree, controller):
        below = _below(tree, mount, own.get(mount.version))
        if below is None:
            continue
        below = below[:MOST_PARENTS]
        for depth in range(len(below), -1, -1):
            place = "/".join([mount.place, *below[:depth]])
            number = _inode(tree, place)
            if number is not None:
                found.setdefault(place, Group(place, mount.version, depth == len(below), number))
    return list(found.values())


def _memory(tree: Tree, group: Group) -> Iterator[Allowance]:
    rows = [line.split() for line in (tree.text(f"{group.place}/memory.stat") or "").splitlines()]
    stat = {row[0]: number for row in rows if len(row) == 2 and (number := _number(row[1])) is not None}
    counted = tree.text(f"{group.place}/memory.use_hierarchy") or ""
    if group.version == 1 and not group.is_own and counted.strip() == "0":
        return  # what groups below it take is not counted here
    inactive, active, mapped, slab = (stat.get(name, 0) for name in RECLAIMED[group.version])
    # file pages go before anybody is killed, but for those that programs run from
    free = max(inactive, inactive + active - mapped) + slab
    for file, usage, above in LIMITS[group.version]:
        taken = max(0, (_number(tree.text(f"{group.place}/{usage}") or "") or 0) - free)
        limit = _number(tree.text(f"{group.place}/{file}") or "")
        for name, allowed in ((file, limit), (above, stat.get(above) if group.is_own else None)):
            if allowed is not None and allowed < UNLIMITED_BYTES:
                yield Allowance(group, name, allowed, taken)


def _number(text: str) -> int | None:
    """Return a number as the kernel writes it; None for ``max``, -1, and what is damaged."""
    return int(text) if re.fullmatch("[0-9]{1,20}", text := text.strip(), re.ASCII) else None


def _own(tree: Tree, controller: str) -> dict[int, Path]:
    """Return this process's group by version, as the kernel names it: from the root of its cgroup namespace."""
    found: dict[int, Path] = {}
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            if number == "0" and not controllers:
                found.setdefault(2, _path(path.removesuffix(" (deleted)")))
            elif controller in controllers.split(","):
                found.setdefault(1, _path(path.removesuffix(" (deleted)")))
    return found


def _path(text: str) -> Path:
    return tuple(part for part in text.split("/") if part not in ("", "."))


def _mounts(tree: Tree, controller: str) -> list[_Mount]:
    """Return where groups of ``controller`` are mounted; where one mount covers another, the upper."""
    found: dict[str, _Mount] = {}
    for line in (tree.text("proc/self/mountinfo", MOST_MOUNT_BYTES) or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        root, place = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) for text in fields[3:5])
        if ".." not in _path(place) and (kind[0] == "cgroup2" or controller in kind[2].split(",")):
            made = _Mount("/".join(_path(place)), 2 if kind[0] == "cgroup2" else 1, _path(root))
            found[made.place] = made
    for version, places in ((2, USUAL_2), (1, USUAL[controller])):
        for place in places:
            found.setdefault(place, _Mount(place, version, (), guessed=True))
    return list(found.values())


def _below(tree: Tree, mount: _Mount, own: Path | None) -> Path | None:
    """Return the names from what is mounted to this process's group; None where that is not below it.

    Both are told from the root of the cgroup namespace: ``..`` are groups above it, whose names are told to nobody.
    """
    if own is None:
        return _searched(tree, mount) or ()
    n = 0
    while n < min(len(own), len(mount.root)) and own[n] == mount.root[n]:
        n += 1
    hidden, below = mount.root[n:], own[n:]
    if not hidden and ".." not in below:
        return below
    found = _searched(tree, mount)
    if found is None and hidden and set(hidden) == {".."}:
        return ()  # what is mounted is above the process, wherever that is
    return found


def _searched(tree: Tree, mount: _Mount) -> Path | None:
    """Return the names from what is mounted to the group that lists this process, if it is found."""
    pid = (tree.text("proc/self/stat") or "").partition(" ")[0]
    waiting: deque[Path] = deque([()] if pid.isdecimal() and not mount.guessed else [])
    for _ in range(MOST_SEARCHED):
        if not waiting:
            break
        names = waiting.popleft()
        place = "/".join([mount.place, *names])
        if pid in (tree.text(f"{place}/cgroup.procs") or "").split():
            return names
        waiting += [(*names, name) for name in _folders(tree, place)]
    return None


def _folders(tree: Tree, place: str) -> list[str]:
    try:
        with os.scandir(os.path.join(tree.root, place)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (OSError, ValueError):
        return []


def _inode(tree: Tree, place: str) -> int | None:
    try:
        return os.stat(os.path.join(tree.root, place)).st_ino
    except (OSError, ValueError):
        return None
