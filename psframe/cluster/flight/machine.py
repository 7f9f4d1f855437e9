"""State of a machine and of processes, as the kernel tells it (:func:`machine`, :func:`process`): plain values.

What cannot be read is left out. Times are in seconds since the process, or the machine, began.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psframe.cluster.siblings import stat
from psframe.memory import cgroups
from psframe.memory.sysfs import Tree

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
#: fields of /proc/meminfo, in kB there
MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Dirty", "Writeback")
#: fields of /proc/PID/status
STATUS = ("VmRSS", "VmSwap", "Threads", "Cpus_allowed_list", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


def machine(folder: str, proc: Path = PROC, tree: Tree | None = None) -> dict[str, Any]:
    """Return load, pressure, memory, the limits of this process's cgroup, and the disk that ``folder`` lies on."""
    return _known(
        cores=lambda: os.cpu_count(),
        load=lambda: [float(word) for word in (proc / "loadavg").read_text().split()[:3]],
        pressure=lambda: {name: _pressure((proc / "pressure" / name).read_text()) for name in ("cpu", "memory", "io")},
        memory=lambda: _memory(proc),
        stolen_s=lambda: int((proc / "stat").read_text().split()[8]) / TICK,
        swapped=lambda: _swapped(proc),
        cgroup=lambda: _cgroup(tree or Tree(Path("/"))),
        disk=lambda: _disk(folder),
        frequency=lambda: _throttled(Path("/sys/devices/system/cpu")),
    )


def process(pid: int, proc: Path = PROC) -> dict[str, Any]:
    """Return what a process has used, and what it does: {} if it has ended and is gone."""
    folder = proc / str(pid)
    return _known(
        **_stat(pid, proc),
        waited=lambda: _waited_s(folder),
        status=lambda: _status(folder),
        call=lambda: (folder / "wchan").read_text().strip("0\n")[:60],
    )


def _known(**asked: Callable[[], Any]) -> dict[str, Any]:
    """Return the values that can be read."""
    found = {}
    for name, ask in asked.items():
        try:
            value = ask()
        except (OSError, ValueError, LookupError):
            continue
        if value is not None:
            found[name] = value
    return found


def _stat(pid: int, proc: Path) -> dict[str, Callable[[], Any]]:
    try:
        _, _, fields = stat(proc, pid)
    except (OSError, IndexError):
        return {}
    return {
        "state": lambda: fields[0],  # R runs, S sleeps, D waits for a disk, T is stopped, Z has ended
        "cpu_s": lambda: (int(fields[11]) + int(fields[12])) / TICK,
        "faults": lambda: int(fields[7]),
        "major_faults": lambda: int(fields[9]),
        "core": lambda: int(fields[36]),
    }


def _waited_s(folder: Path) -> float:
    """Return the seconds in which its first thread could run and had no core."""
    return int((folder / "schedstat").read_text().split()[1]) / 1e9


def _status(folder: Path) -> dict[str, str]:
    pairs = (line.partition(":")[::2] for line in (folder / "status").read_text(errors="replace").splitlines())
    return {name: value.strip()[:200] for name, value in pairs if name in STATUS}


def _pressure(text: str) -> dict[str, float]:
    """Return the microseconds in which some, or all, of the tasks waited, and the share of the last 10 s."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        values = dict(word.split("=") for word in words)
        found |= {kind: float(values["total"]), f"{kind}_10s": float(values["avg10"])}
    return found


def _memory(proc: Path) -> dict[str, int]:
    pairs = (line.split()[:2] for line in (proc / "meminfo").read_text().splitlines())
    return {name[:-1]: int(n) << 10 for name, n in pairs if name[:-1] in MEMORY}


def _swapped(proc: Path) -> dict[str, int]:
    """Return the pages that the machine has read from swap, and written there, since it began."""
    pairs = (line.split() for line in (proc / "vmstat").read_text().splitlines())
    return {name: int(n) for name, n in pairs if name in ("pswpin", "pswpout")}


def _disk(folder: str) -> dict[str, int]:
    found = os.statvfs(folder)
    return {"free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize, "files": found.f_favail}


def _throttled(cores: Path) -> int | None:
    """Return how often the cores were too hot for their clock; None if the machine does not count it."""
    counts = [int(path.read_text()) for path in cores.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")]
    return sum(counts) if counts else None


def _cgroup(tree: Tree) -> dict[str, Any]:
    """Return what this process's cgroups are short of: CPU time and memory, for each group, and the memory left.

    Times are in microseconds: those in which all of a group's tasks waited for memory, and some for a disk, too. Each
    group's counts are its own: what happened above it long ago must not hide what happens in it.
    """
    of_groups: dict[str, dict[str, int]] = {}
    found: dict[str, Any] = {"groups": of_groups}
    for group in cgroups.groups(tree, "cpu"):
        counts = _counts(tree.text(f"{group.place}/cpu.stat"))
        microseconds = counts.get("throttled_usec", counts.get("throttled_time", 0) // 1000)
        told = {"periods": counts.get("nr_periods", 0), "throttled": counts.get("nr_throttled", 0)}
        of_groups[group.place] = {**told, "throttled_us": microseconds}
    for group in cgroups.groups(tree, "memory"):
        events = "memory.events" if group.version == 2 else "memory.oom_control"
        counts = _counts(tree.text(f"{group.place}/{events}"))
        failed = (tree.text(f"{group.place}/memory.failcnt") or "").strip()  # of version 1
        reached = counts.get("high", 0) + counts.get("max", 0) + (int(failed) if failed.isdecimal() else 0)
        killed = {"killed": counts.get("oom_kill", 0), "reached": reached}
        of_groups.setdefault(group.place, {}).update(killed)
        if group.is_own:  # what its tasks wait for, whichever group above it has the limit
            kinds = {"memory": "full", "io": "some"}
            texts = {of: tree.text(f"{group.place}/{of}.pressure") or "" for of in kinds}
            for of, text in texts.items():
                found[f"{of}_us"] = max(found.get(f"{of}_us", 0), _stalled(text, kinds[of]))
    limits = cgroups.memory(tree)
    if limits:
        found["memory_left"] = min(limit.limit - limit.taken for limit in limits)
    return found


def _stalled(text: str, kind: str) -> int:
    """Return the microseconds of a kind in the text of a cgroup's pressure; 0 if unknown."""
    try:
        return int(_pressure(text.strip())[kind])
    except (ValueError, LookupError):
        return 0


def _counts(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
