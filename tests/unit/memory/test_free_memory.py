"""What ranks may take together: of memory and of the CPUs' time, where some or all of them are under a limit."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from psframe.cluster import node_channel
from psframe.cluster.affinity import UNLIMITED, quotas
from psframe.cluster.cluster import AgreedError
from psframe.memory import cgroups, free_memory
from psframe.memory.budget import table_by_role
from psframe.memory.free_memory import MACHINE, Room, overdrawn
from psframe.memory.sysfs import Tree
from psframe.train.placement_report import check_room
from tests.helpers.cgroup_trees import GROUPS, MB, V1, V2, process
from tests.helpers.machine_trees import put


@pytest.mark.parametrize(
    ("files", "n_cpus"),
    [
        ({"": "max 100000", "/job": "200000 100000", "/job/step": "max 100000"}, 2),
        ({"/job": "150000 100000"}, 1.5),
        ({"/job": "400000 100000", "/job/step": "50000 100000"}, 0.5),
        ({"": "300000 100000", "/job/step": "400000 100000"}, 3),
        ({"/other": "100000 100000", "/job": "max 100000"}, None),
        ({"/job": "1 0", "/job/step": "0 1"}, None),
        ({"/job": "-1 100000", "/job/step": "100000"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_cgroups_allow_so_many_cpus(tmp_path, version, files, n_cpus):
    process(tmp_path, "3:cpuacct,cpu:/job/step\n0::/job/step", *(V1 if version == 1 else [V2]))
    for path, text in files.items():
        if version == 2:
            put(tmp_path, f"{GROUPS}{path}/cpu.max", text)
            continue
        for name, word in zip(("quota", "period"), text.replace("max", "-1").split(), strict=False):
            put(tmp_path, f"{GROUPS}/cpu,cpuacct{path}/cpu.cfs_{name}_us", word)
    (allowed,) = quotas([cgroups.cpus(Tree(tmp_path))])
    assert allowed == (UNLIMITED if n_cpus is None else n_cpus)


def test_ranks_divide_what_their_common_cgroup_allows():
    job, tasks = (2, 100), [(2, 101), (2, 102)]
    assert quotas([{job: 3.0}, {job: 3.0}]) == [1.5, 1.5]
    assert quotas([{task: 2.0} for task in tasks]) == [2, 2]  # a container each
    assert quotas([{task: 2.0, job: 3.0} for task in tasks]) == [1.5, 1.5]
    assert quotas([{job: 2.0}, {}]) == [2, UNLIMITED]


def test_limit_is_held_against_the_ranks_under_it():
    def of(left, job=None, task=None, number=0):
        found = [Room(MACHINE, left)]
        found += [Room((2, 100), job, "job")] if job is not None else []
        return [*found, Room((2, 101 + number), task, f"task {number}")] if task is not None else found

    assert overdrawn([5, 5], [of(10), of(10)]) is None
    assert overdrawn([5, 6], [of(10), of(10)]) == (Room(MACHINE, 10), [0, 1])
    assert overdrawn([5, 5], [of(99, job=9)] * 2) == (Room((2, 100), 9, "job"), [0, 1])
    assert overdrawn([5, 5], [of(99, job=10), of(99, job=9)]) == (Room((2, 100), 9, "job"), [0, 1])  # read later
    assert overdrawn([5, 5], [of(99, task=6, number=n) for n in (0, 1)]) is None  # in all they want more than 6
    assert overdrawn([5, 7], [of(99, task=6, number=n) for n in (0, 1)]) == (Room((2, 102), 6, "task 1"), [1])
    assert overdrawn([0, 0], [of(0), of(0)]) is None
    assert overdrawn([], []) is None


PAGE = resource.getpagesize()


@pytest.mark.parametrize(
    ("limit", "sizes", "left"),
    [
        (5000 * PAGE, "1000 10 5 1 0 900 0", 4000 * PAGE),
        (5000 * PAGE + 7, "0 10 5 1 0 900 0", 5000 * PAGE + 7),
        (5000 * PAGE, "5001 10 5 1 0 900 0", 0),
        (resource.RLIM_INFINITY, "1000 10 5 1 0 900 0", None),
        (5000 * PAGE, "-1 10", None),
        (5000 * PAGE, "", None),
    ],
)
def test_address_space_left_is_the_limit_less_the_pages_taken(tmp_path, monkeypatch, limit, sizes, left):
    monkeypatch.setattr(free_memory.resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    if sizes:
        put(tmp_path, "proc/self/statm", sizes)
    found = free_memory._of_process(Tree(tmp_path))
    assert [room.left for room in found] == ([] if left is None else [left])


def test_table_tells_what_each_role_takes():
    rows = table_by_role([{"gradients": 5, "data": 1000}, {"gradients": 7, "data": 0, "optimizer": 0}], 900)
    assert rows[1:] == [
        ["gradients", "2", "7", "12"],
        ["data", "1", "1,000", "1,000"],
        ["wanted", "2", "1,005", "1,012"],
        ["free", "", "", "900"],
    ]


def test_roles_that_do_not_fit_are_an_error_with_the_table(monkeypatch):
    left = [Room(MACHINE, 90), Room((2, 100), 40, "memory.max=50 of the cgroup /job")]
    monkeypatch.setattr(free_memory, "rooms", lambda: left)
    cluster = SimpleNamespace(node=0, n_nodes=1, hosts=("a",), checks_memory=True, allgather=lambda mine: [mine] * 2)
    check_room(cluster, {"data": 10, "gradients": 10})
    with pytest.raises(AgreedError) as told:
        check_room(cluster, {"data": 11, "gradients": 10})
    said, *table = str(told.value).splitlines()
    assert "want 42 bytes, got 40 by memory.max=50 of the cgroup /job; raise that limit" in said
    assert [line.split()[-1] for line in table] == ["ranks", "20", "22", "42", "40"]
    cluster.allgather = lambda mine: [mine, (1, {"data": 91}, left[:1])]  # of another node, where no group is
    cluster.n_nodes, cluster.hosts = 2, ("a", "b")
    with pytest.raises(AgreedError, match=r"want 91 bytes, got 90 \(on b\); lower"):
        check_room(cluster, {"data": 11})


def test_shared_memory_is_not_held_against_one_cgroup(monkeypatch):
    monkeypatch.setattr(node_channel, "available_bytes", lambda: 4095)
    monkeypatch.setattr(node_channel, "machine_bytes", lambda: 8191)
    for n_bytes, take, fits in ((4096, True, False), (4096, False, True), (8192, False, False)):
        fd, error = node_channel.reserve(n_bytes, 0, None, take)
        if fd >= 0:
            os.close(fd)
        assert (error is None) == fits


def _own_memory_group():
    """Return the folder of this process's memory cgroup, if groups can be made below it."""
    for group in cgroups.groups(Tree("/"), "memory"):
        folder = Path("/", group.place)
        if group.is_own and group.version == 1 and os.access(folder, os.W_OK) and (folder / "tasks").exists():
            return folder
    return None


@pytest.mark.full
@pytest.mark.skipif(_own_memory_group() is None, reason="no memory cgroup can be made here")
def test_job_that_does_not_fit_its_cgroup_ends_with_the_table(tmp_path):
    config = tmp_path / "big.yaml"
    config.write_text("name: big\nmodel: lenet\ndataset: {name: synthetic, samples: 200000}\n")
    job = _own_memory_group() / f"psframe-test-{os.getpid()}"
    step = job / "step"
    step.mkdir(parents=True)
    try:
        (job / "memory.limit_in_bytes").write_text(str(500 * MB))
        ended = subprocess.run(
            ["sh", "-c", 'echo $$ > "$0" && exec "$@"', step / "cgroup.procs",
             sys.executable, "-m", "psframe.train", config, "--dry-run"],
            capture_output=True, text=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
    finally:
        step.rmdir()
        job.rmdir()
    assert ended.returncode == 2, ended.stderr
    assert "memory.limit_in_bytes=" in ended.stderr
    assert str(job) in ended.stderr
    table = [line.split()[:2] for line in ended.stderr.splitlines()[1:]]
    assert ["data", "1"] in table
    assert "Traceback" not in ended.stderr
