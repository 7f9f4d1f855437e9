"""Run in the guest, ``python -m tests.knl.probe FILE``: take memory in every way from every NUMA node; count its pages.

Writes JSON: ``{"probes": [{"home", "spec", "shared", "memkind", "asked", "pages", "notes"}, ...], "watched"}``.
"""

import json
import mmap
import multiprocessing
import os
import sys
import time

import numpy as np

from psframe import compiled
from psframe.compiled import _memkind
from psframe.config.registry import bind
from psframe.memory.audit import located
from psframe.memory.placement import TABLE
from psframe.memory.process_site import Site
from psframe.memory.topology import read

N_BYTES = (4 << 20) + 4097  # no whole huge pages
DEADLINE_S = 20  # of its own work, however many others want the cores
SPECS = [
    {"name": "default"},
    {"name": "ddr"},
    {"name": "hbw"},
    {"name": "hbw", "policy": "preferred"},
    {"name": "hbw", "policy": "interleave"},
    {"name": "hbw", "huge_pages": "transparent"},
    {"name": "hbw", "huge_pages": "2M"},
    {"name": "ddr", "huge_pages": "2M"},
    {"name": "interleave", "huge_pages": "2M"},
    {"name": "hbw", "policy": "interleave", "huge_pages": "2M"},
    {"name": "interleave"},
    {"name": "weighted", "weights": {"hbw": 3, "ddr": 1}},
]


def private(placement, site):
    return placement.allocate(N_BYTES, site)


def shared(placement, site):
    huge = placement.huge_pages == "2M"
    size = N_BYTES + (2 << 20) - N_BYTES % (2 << 20) if huge else N_BYTES
    fd = os.memfd_create("probe", os.MFD_HUGETLB if huge else 0)
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    placement.bind(np.frombuffer(mapping, np.uint8), site)
    return mapping


def watched():
    """Return pages that NUMA balancing watches: as the kernel tells of them, and then as psframe does.

    It watches what has no policy of its own, about once a second of a process's work; after the deadline, take it so.
    """
    memory = np.ones(N_BYTES, np.uint8)
    deadline = time.process_time() + DEADLINE_S
    while -1 not in (told := compiled.numa.where(memory)) and time.process_time() < deadline:
        pass
    return {"told": told, "located": located(memory)}


def probe(number):
    """Return what becomes of every request by a process that runs on the CPUs of a NUMA node."""
    topology = read("/")
    cpus = topology.node(number).cpus
    os.sched_setaffinity(0, cpus)
    site, found = Site(topology, cpus), []
    for spec in [*SPECS, {"name": "numa", "nodes": [topology.memory[-1]]}]:
        for take in (private, shared):
            site.notes.clear()
            placement = bind("placement", TABLE, spec)()
            block = take(placement, site)
            memory = np.frombuffer(block, np.uint8)
            memory[:] = 1
            found.append(
                {
                    "home": number,
                    "spec": spec,
                    "shared": take is shared,
                    "memkind": isinstance(block, _memkind.HbwBlock),
                    "asked": placement.policy(site, take is shared).nodes,
                    "pages": located(memory),
                    "notes": list(site.notes),
                }
            )
    return found


if __name__ == "__main__":
    homes = [node.number for node in read("/").nodes if node.cpus]
    # memkind hands out again what was freed, wherever that was: a process must be bound before its first request
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        every = pool.map(probe, homes, chunksize=1)
    with open(sys.argv[1], "w") as out:
        json.dump({"probes": [one for of_home in every for one in of_home], "watched": watched()}, out)
