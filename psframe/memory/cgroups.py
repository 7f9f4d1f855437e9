"""Memory and CPU limits of this process's cgroups, version 1, 2 or both (:func:`memory`, :func:`cpus`).

A limit applies to all groups below it: a Slurm job's limit to the group of each task. So every group counts, from the
process's own up to the topmost mounted one. Missing or malformed files never raise here.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from psframe.memory.sysfs import Tree

#: usual mount points of a controller, if no file lists them; version 2 has one for all controllers
USUAL = {
    "memory": ("sys/fs/cgroup/memory",),
    "cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"),
}
USUAL_2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")

ABOVE = "hierarchical_"
#: by version: files of a limit and its usage, and the key in memory.stat of the lowest such limit up the hierarchy
LIMITS = {
    2: (("memory.max", "memory.current", ""), ("memory.high", "memory.current", "")),
    1: (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", f"{ABOVE}memory_limit"),
        ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", f"{ABOVE}memsw_limit"),
    ),
}
#: keys in memory.stat of inactive, active and mapped file pages, and of the kernel's reclaimable caches
RECLAIMED = {
    2: ("inactive_file", "active_file", "file_mapped", "slab_reclaimable"),
    1: ("total_inactive_file", "total_active_file", "total_mapped_file", ""),
}

MAX_PARENTS = 256  # of a group; paths are shorter than 4096 characters
MAX_SEARCHED = 4096  # groups searched for this process
MAX_MOUNT_BYTES = 1 << 24  # hosts of many containers have thousands of mounts
UNLIMITED_BYTES = 1 << 62  # version 1 writes a number of this size for no limit

Path = tuple[str, ...]  #: the names from the root of a hierarchy down to a group


@dataclass(frozen=True)
class Group:
    """A cgroup of this process, or an ancestor of one.

    Attributes
    ----------
    place : str
        Its folder, relative to the root of the tree of files.
    version : {1, 2}
    is_own : bool
        True if the process is a direct member.
    number : int
        Its inode, which identifies the group on a machine, across containers and names.
    """

    place: str
    version: int
    is_own: bool
    number: int


@dataclass(frozen=True)
class Allowance:
    """One memory limit of a cgroup and its usage without reclaimable pages (``taken``), in bytes."""

    group: Group
    file: str
    limit: int
    taken: int


@dataclass(frozen=True)
class _Mount:
    place: str
    version: int
    root: Path  # the group of the hierarchy that is mounted there
    guessed: bool = False


def memory(tree: Tree) -> list[Allowance]:
    """Return the visible memory limits of this process's cgroup and its ancestors."""
    limits = [allowance for group in groups(tree, "memory") for allowance in _memory(tree, group)]
    return sorted(limits, key=lambda allowance: allowance.file.startswith(ABOVE))  # limits that name their group first


def cpus(tree: Tree) -> dict[tuple[int, int], float]:
    """Return the CPU quota (in CPUs) of this process's cgroups that have one, by cgroup version and inode."""
    quotas: dict[tuple[int, int], float] = {}
    for group in groups(tree, "cpu"):
        if group.version == 2:
            words = (tree.text(f"{group.place}/cpu.max") or "").split()
        else:
            words = [(tree.text(f"{group.place}/cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        numbers = [_number(word) for word in words]
        if len(numbers) == 2 and numbers[0] and numbers[1]:  # else "max", or -1
            key = (group.version, group.number)
            quotas[key] = min(quotas.get(key, float("inf")), numbers[0] / numbers[1])
    return quotas


def groups(tree: Tree, controller: str) -> list[Group]:
    """Return this process's cgroups for ``controller``, per mount from the lowest up."""
    own_paths = _own(tree, controller)
    by_place: dict[str, Group] = {}
    for mount in _mounts(tree, controller):
        below = _below(tree, mount, own_paths.get(mount.version))
        if below is None:
            continue
        below = below[:MAX_PARENTS]
        for depth in range(len(below), -1, -1):
            place = "/".join([mount.place, *below[:depth]])
            number = _inode(tree, place)
            if number is not None:
                by_place.setdefault(place, Group(place, mount.version, depth == len(below), number))
    return list(by_place.values())


def _memory(tree: Tree, group: Group) -> Iterator[Allowance]:
    rows = [line.split() for line in (tree.text(f"{group.place}/memory.stat") or "").splitlines()]
    stat = {row[0]: number for row in rows if len(row) == 2 and (number := _number(row[1])) is not None}
    counted = tree.text(f"{group.place}/memory.use_hierarchy") or ""
    if group.version == 1 and not group.is_own and counted.strip() == "0":
        return  # it neither counts nor limits the groups below it
    inactive, active, mapped, slab = (stat.get(name, 0) for name in RECLAIMED[group.version])
    # the kernel reclaims file pages before it kills a process; mapped ones, such as program text, are in use
    free = max(inactive, inactive + active - mapped) + slab
    for file, usage, above in LIMITS[group.version]:
        taken = max(0, (_number(tree.text(f"{group.place}/{usage}") or "") or 0) - free)
        limit = _number(tree.text(f"{group.place}/{file}") or "")
        for name, allowed in ((file, limit), (above, stat.get(above) if group.is_own else None)):
            if allowed is not None and allowed < UNLIMITED_BYTES:
                yield Allowance(group, name, allowed, taken)


def _number(text: str) -> int | None:
    """Return a number as the kernel writes it; None for ``max``, -1, and malformed text."""
    return int(text) if re.fullmatch("[0-9]{1,20}", text := text.strip(), re.ASCII) else None


def _own(tree: Tree, controller: str) -> dict[int, Path]:
    """Return this process's group by version, as the kernel names it, relative to the root of its cgroup namespace."""
    paths: dict[int, Path] = {}
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            if number == "0" and not controllers:
                paths.setdefault(2, _path(path.removesuffix(" (deleted)")))
            elif controller in controllers.split(","):
                paths.setdefault(1, _path(path.removesuffix(" (deleted)")))
    return paths


def _path(text: str) -> Path:
    return tuple(part for part in text.split("/") if part not in ("", "."))


def _mounts(tree: Tree, controller: str) -> list[_Mount]:
    """Return the mounts of ``controller``; of mounts on one folder, the last, which covers the others."""
    found: dict[str, _Mount] = {}
    for line in (tree.text("proc/self/mountinfo", MAX_MOUNT_BYTES) or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        root, place = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text) for text in fields[3:5])
        if ".." not in _path(place) and (kind[0] == "cgroup2" or controller in kind[2].split(",")):
            mount = _Mount("/".join(_path(place)), 2 if kind[0] == "cgroup2" else 1, _path(root))
            found[mount.place] = mount
    for version, places in ((2, USUAL_2), (1, USUAL[controller])):
        for place in places:
            found.setdefault(place, _Mount(place, version, (), guessed=True))
    return list(found.values())


def _below(tree: Tree, mount: _Mount, own: Path | None) -> Path | None:
    """Return the names from the mounted group down to this process's; None if that is not below it.

    The kernel gives both relative to the root of the cgroup namespace: ``..`` stands for a group above it, whose name
    it hides.
    """
    if own is None:
        return _searched(tree, mount) or ()
    n = 0
    while n < min(len(own), len(mount.root)) and own[n] == mount.root[n]:
        n += 1
    hidden, below = mount.root[n:], own[n:]
    if not hidden and ".." not in below:
        return below
    path = _searched(tree, mount)
    if path is None and hidden and set(hidden) == {".."}:
        return ()  # the mounted group is above the process at an unknown distance
    return path


def _searched(tree: Tree, mount: _Mount) -> Path | None:
    """Return the names from the mounted group down to the one that lists this process; None if not found."""
    pid = (tree.text("proc/self/stat") or "").partition(" ")[0]
    waiting: deque[Path] = deque([()] if pid.isdecimal() and not mount.guessed else [])
    for _ in range(MAX_SEARCHED):
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
