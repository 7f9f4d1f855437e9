"""How much memory a node has left."""

from pathlib import Path


def available_bytes() -> int:
    """Return the bytes that can be taken now: what the kernel calls available, or less where a cgroup allows less."""
    room = [2**63 - 1]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            room.append(int(line.split()[1]) * 1024)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            room.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such cgroup, or "max"
    return max(0, min(room))
