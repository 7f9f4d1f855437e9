"""Resources and permissions of a machine as plain values (:func:`machine`): of this one, or of captured files."""

import errno
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.errors import UserError
from psframe.memory import cgroups
from psframe.memory.free_memory import available
from psframe.memory.process_site import Site
from psframe.memory.sysfs import Tree, spell
from psframe.memory.topology import Topology

TRANSPARENT = "sys/kernel/mm/transparent_hugepage"


def machine(topology: Topology) -> dict[str, Any]:
    """Return CPUs, NUMA nodes with their tiers, and modes."""
    nodes = [
        {
            "node": node.number,
            "tier": node.tier,
            "cpus": spell(node.cpus),
            "n_cpus": len(node.cpus),
            "total_bytes": node.total_bytes,
            "free_bytes": node.free_bytes,
            "bandwidth_mbps": node.bandwidth_mbps,
            "latency_ns": node.latency_ns,
            "distances": {str(other): distance for other, distance in node.distances.items()},
            "side_cache_bytes": node.side_cache_bytes,
            "huge_pages": {str(s): {"reserved": total, "free": free} for s, (total, free) in node.huge_pages.items()},
            "allowed": node.allowed,
        }
        for node in topology.nodes
    ]
    return {
        "cpu": topology.cpu,
        "platform": topology.platform,
        "packages": topology.packages,
        "n_cpus": len(topology.cpus),
        "n_cores": len(topology.cores),
        "cpus": spell(topology.cpus),
        "offline_cpus": spell(topology.offline_cpus),
        "n_nodes": len(topology.nodes),
        "offline_nodes": spell(topology.offline_nodes),
        "cluster_mode": topology.cluster_mode,
        "memory_mode": topology.memory_mode,
        "nodes": nodes,
        "notes": list(topology.notes),
    }


def transparent_huge_pages(root: Path) -> dict[str, str | None]:
    """Return the kernel's setting of transparent huge pages, for private and shared memory; None if unknown."""
    return {
        kind: _chosen(root / TRANSPARENT / file) for kind, file in (("private", "enabled"), ("shared", "shmem_enabled"))
    }


def _chosen(path: Path) -> str | None:
    try:
        return path.read_text().partition("[")[2].partition("]")[0] or None
    except (OSError, ValueError):
        return None


def placements(site: Site, live: bool) -> dict[str, dict[str, Any]]:
    """Return each placement's effect here: ``nodes`` and ``mode``, or ``error``; on this machine also ``tried``.

    ``tried`` counts by NUMA node the pages of a test allocation that was written to.
    """
    from psframe.config.registry import load
    from psframe.memory.placement import FOR_RUNS, TABLE

    effects: dict[str, dict[str, Any]] = {}
    for name in (name for name in TABLE if name not in FOR_RUNS):
        placement = load("placement", TABLE, name)(**_keys(name, site.topology.memory))
        try:
            policy = placement.policy(site, False)
            effects[name] = {"mode": policy.mode, "nodes": list(policy.nodes), "error": None}
            if live:
                effects[name]["tried"] = _try(placement, site)
        except (UserError, OSError) as error:
            effects[name] = {"mode": None, "nodes": [], "error": str(error)}
    return effects


def _keys(name: str, nodes: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys that a placement must have, of some of the nodes."""
    if name == "numa":
        return {"nodes": nodes[:1]}
    return {"weights": dict.fromkeys(nodes, 1)} if name == "weighted" else {}


def _try(placement: Any, site: Site) -> dict[str, int]:
    import numpy as np

    from psframe.memory import audit
    from psframe.memory.pages import Policy

    memory = np.frombuffer(placement.allocate(1 << 16, site), np.uint8)
    memory[:] = 1
    return audit.count([("", memory)], {"": Policy()})[""].to_plain()


def permissions(topology: Topology) -> dict[str, str]:
    """Return ``"allowed"``, or the reason of failure, for each system call that placement and audit need."""
    import numpy as np

    from psframe import compiled

    numa = compiled.numa
    memory = np.frombuffer(numa.Block(numa.PAGE_BYTES), np.uint8)
    calls = {
        "mbind": lambda: numa.mbind(memory, "bind", topology.memory),
        "move_pages": lambda: numa.where(memory),
        "sched_setaffinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    }
    outcomes = {}
    for name, call in calls.items():
        try:
            call()
            outcomes[name] = "allowed"
        except OSError as error:
            outcomes[name] = f"denied ({errno.errorcode.get(error.errno or 0, error)}: {error.strerror})"
    return outcomes


def memkind(topology: Topology) -> dict[str, Any]:
    """Return memkind's version, and True if it finds high-bandwidth memory here; or why it cannot be opened."""
    from psframe import compiled
    from psframe.memory.hbw import open_memkind

    try:
        compiled.memkind.load()
    except OSError as error:
        return {"version": None, "finds_hbw": None, "error": str(error)}
    finds = not open_memkind(topology.hbw) if topology.hbw else compiled.memkind.available()
    return {"version": compiled.memkind.version(), "finds_hbw": finds, "error": None}


def bfloat16() -> str:
    """Return how ``train.precision: bf16`` multiplies on this CPU: ``instruction``, ``multiply-adds``, or ``none``."""
    from psframe.nn.precision import BFloat16
    from psframe.nn.vectors import host

    if not BFloat16.available():
        return "none"
    return "instruction" if host().fast_bf16 else "multiply-adds"


def limits() -> dict[str, Any]:
    """Return limits in bytes: of locked memory (None: no limit), of /dev/shm, and of the free part of that.

    Also the remaining memory of the machine, or under a limit of a cgroup, which is named, and the number of CPUs whose
    time cgroups allow (None: no limit).
    """
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    try:
        shm = os.statvfs("/dev/shm")
        size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        size = free = 0
    room = available()
    return {
        "memlock_bytes": None if locked == resource.RLIM_INFINITY else locked,
        "dev_shm_bytes": size,
        "dev_shm_free_bytes": free,
        "memory_bytes": room.left,
        "memory_limit": room.limit or None,
        "cpus": min(cgroups.cpus(Tree("/")).values(), default=None),
    }


#: by the report's word
_BFLOAT16 = {
    "instruction": "an instruction adds products of pairs, twice as many as of float32",
    "multiply-adds": "two multiply-adds a pair, to the bits of the instruction, and slower than float32",
    "none": "not on this CPU; train.precision=bf16 must have x86 with AVX2",
}


def text(report: Mapping[str, Any]) -> str:
    """Format a report for one screen."""
    lines = [_title(report), "", _nodes(report["nodes"])]
    lines += [f"note: {note}" for note in report["notes"]]
    thp = report["transparent_huge_pages"]
    lines += ["", f"huge pages   transparent: private {thp['private'] or '-'}, shared {thp['shared'] or '-'}"]
    if "memkind" in report:
        lines += _live(report)
    lines += ["", "placements   what each would do here"]
    for name, effect in report["placements"].items():
        lines.append(f"  {name:<11}{effect['error'] or _would(effect)}")
    if "measured" in report:
        from psframe.doctor.measure import lines as of_measured

        lines += of_measured(report["measured"])
    if "torch" in report:
        from psframe.torch.facts import lines as of_torch

        lines += of_torch(report["torch"])
    if "config" in report:
        error = report["config"]["error"]
        lines += ["", f"config       {report['config']['path']}: {'can run as asked' if error is None else error}"]
    return "\n".join(lines)


def _title(report: Mapping[str, Any]) -> str:
    modes = [f"{kind} mode {report[f'{kind}_mode']}" for kind in ("cluster", "memory") if report[f"{kind}_mode"]]
    counts = f"{report['n_cores']} cores, {report['n_cpus']} CPUs, {report['n_nodes']} NUMA node(s)"
    offline = f"offline CPUs {report['offline_cpus']}" if report["offline_cpus"] else ""
    return ", ".join(filter(None, [report["cpu"] or "unknown CPU", counts, *modes, offline]))


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    from psframe.record.view import aligned

    rows = [["node", "tier", "CPUs", "total MB", "free MB", "MB/s", "ns", "huge pages", ""]]
    for node in nodes:
        huge = [
            f"{int(s) >> 10} kB: {n['free']} of {n['reserved']}" for s, n in node["huge_pages"].items() if n["reserved"]
        ]
        size = [f"{node[key] / 1e6:,.0f}" for key in ("total_bytes", "free_bytes")]
        speed = [str(node[key] or "-") for key in ("bandwidth_mbps", "latency_ns")]
        barred = "" if node["allowed"] else "not allowed (cpuset.mems)"
        row = [
            str(node["node"]),
            node["tier"] or "-",
            node["cpus"] or "-",
            *size,
            *speed,
            ", ".join(huge) or "-",
            barred,
        ]
        rows.append(row)
    return aligned(rows)


def _live(report: Mapping[str, Any]) -> list[str]:
    memkind, limit, mpi = report["memkind"], report["limits"], report["mpi"]
    finds = "finds high-bandwidth memory" if memkind["finds_hbw"] else "finds no high-bandwidth memory"
    lock = "unlimited" if limit["memlock_bytes"] is None else f"{limit['memlock_bytes']:,} bytes"
    by = f" by {limit['memory_limit']}" if limit["memory_limit"] else ""
    time = f"; {limit['cpus']:g} CPUs' time by cgroup" if limit["cpus"] else ""
    lines = [
        f"memkind      {memkind['error'] or memkind['version'] + ', ' + finds}",
        f"limits       memlock {lock}; /dev/shm {limit['dev_shm_bytes'] / 1e6:,.0f} MB, "
        f"{limit['dev_shm_free_bytes'] / 1e6:,.0f} MB free",
        f"             memory {limit['memory_bytes'] / 1e6:,.0f} MB free{by}{time}",
        "permissions  " + ", ".join(f"{name} {outcome}" for name, outcome in report["permissions"].items()),
        f"MPI          {mpi['error'] or mpi['library']}",
        f"bfloat16     {_BFLOAT16[report['bfloat16']]}",
    ]
    if report["ranks"]:
        over = ", more than there are cores: they will wait for each other's cores" if report["oversubscribed"] else ""
        lines.append(f"ranks        {len(report['ranks'])}{over}")
        for rank in report["ranks"][:16]:
            lines.append(f"  {rank['rank']:<4} node {rank['node']}, CPUs {rank['cpus']} of {rank['allowed_cpus']}")
        if len(report["ranks"]) > 16:
            lines.append(f"  and {len(report['ranks']) - 16} more (--json lists all)")
    return lines


def _would(found: Mapping[str, Any]) -> str:
    how = "" if found["mode"] == "default" else f"{found['mode']} "
    where = f"{how}on node(s) {spell(found['nodes'])}" if found["nodes"] else "where it is first touched"
    if "tried" not in found:
        return where
    return f"{where}; tried, pages by node: " + ", ".join(f"{node}: {n}" for node, n in found["tried"].items())
