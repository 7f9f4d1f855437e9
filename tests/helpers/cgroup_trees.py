"""Trees of cgroups, and what a process is told of its own, as Linux writes them for jobs and containers not at hand."""

import itertools

from tests.helpers.machine_trees import put

GROUPS = "sys/fs/cgroup"
NONE_1 = 9223372036854771712  # how version 1 writes that there is no limit
MB = 10**6
PID = 4242
number = itertools.count(30)


def mount(place, kind="cgroup2", root="/", options="rw"):
    """Return a line of mountinfo."""
    return f"{next(number)} 23 0:{next(number)} {root} /{place} rw,nosuid shared:9 - {kind} {kind} {options}"


V2 = mount(GROUPS, options="rw,nsdelegate,memory_recursiveprot")
V1 = [
    f"24 30 0:22 / /{GROUPS} ro - tmpfs tmpfs ro,mode=755",
    mount(f"{GROUPS}/memory", "cgroup", options="rw,memory"),
    mount(f"{GROUPS}/cpu,cpuacct", "cgroup", options="rw,cpu,cpuacct"),
]


def process(root, own, *mounts, available_kb=64_000_000):
    """Write what a process is told of itself: its cgroups, and what is mounted."""
    put(root, "proc/self/cgroup", own)
    put(root, "proc/self/mountinfo", "\n".join(mounts))
    put(root, "proc/self/stat", f"{PID} (python) R 1")
    put(root, "proc/meminfo", f"MemTotal: 65000000 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB")
    return root


def two(root, path, current=0, **files):
    """Write a cgroup of version 2."""
    put(root, f"{GROUPS}{path}/memory.current", current)
    for name, text in ({"stat": "anon 1\ninactive_file 0"} | files).items():
        put(root, f"{GROUPS}{path}/memory.{name}", text)


def one(root, path, limit, usage=0, stat="", mounted=f"{GROUPS}/memory"):
    """Write a memory cgroup of version 1."""
    put(root, f"{mounted}{path}/memory.limit_in_bytes", limit)
    put(root, f"{mounted}{path}/memory.usage_in_bytes", usage)
    put(root, f"{mounted}{path}/memory.stat", f"cache 0\ntotal_inactive_file 0\n{stat}")
    put(root, f"{mounted}{path}/memory.use_hierarchy", 1)
