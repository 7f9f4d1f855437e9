"""Which cgroups hold this process, as Slurm and containers set them, of version 1, 2 or both; and what they leave."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.memory import cgroups
from psframe.memory.free_memory import MACHINE, available, available_bytes, machine_bytes, rooms
from psframe.memory.sysfs import Tree
from tests.helpers.cgroup_trees import GROUPS, MB, NONE_1, PID, V1, V2, mount, one, process, two
from tests.helpers.machine_trees import put
from tests.helpers.suite import examples

JOB = "/system.slice/slurmstepd.scope/job_7"
TASK = f"{JOB}/step_0/user/task_0"


def test_slurm_job_under_version_2(tmp_path, monkeypatch):
    process(tmp_path, f"0::{TASK}", V2)
    two(tmp_path, JOB, 100 * MB, max=500 * MB, high="max")
    for path in (f"{JOB}/step_0", f"{JOB}/step_0/user", TASK):
        two(tmp_path, path, 90 * MB, max="max", high="max")
    assert available_bytes(tmp_path) == 400 * MB
    assert str(available(tmp_path)) == f"400,000,000 by memory.max=500,000,000 of the cgroup /{GROUPS}{JOB}"
    two(tmp_path, JOB, 100 * MB, max=500 * MB, high=300 * MB)  # above it the kernel all but stops a process
    assert str(available(tmp_path)).startswith("200,000,000 by memory.high=300,000,000 ")
    two(tmp_path, f"{JOB}/step_0", 90 * MB, max=95 * MB)
    assert available_bytes(tmp_path) == 5 * MB
    two(tmp_path, TASK, 96 * MB, max=95 * MB)  # it was lowered while more was taken
    assert available_bytes(tmp_path) == 0
    assert machine_bytes(tmp_path) == 64_000_000 * 1024
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "memory", None)  # which takes reading a dozen files, for nothing
        assert machine_bytes(tmp_path) == 64_000_000 * 1024


def test_slurm_job_under_version_1(tmp_path):
    process(tmp_path, "9:cpu,cpuacct:/\n4:memory:/slurm/uid_0/job_7/step_0\n1:name=systemd:/a\n0::/", *V1)
    one(tmp_path, "", NONE_1, 900 * MB)
    one(tmp_path, "/slurm", NONE_1, 900 * MB)
    one(tmp_path, "/slurm/uid_0", NONE_1, 900 * MB)
    one(tmp_path, "/slurm/uid_0/job_7", 500 * MB, 100 * MB)
    one(tmp_path, "/slurm/uid_0/job_7/step_0", NONE_1, 100 * MB, f"hierarchical_memory_limit {500 * MB}")
    job = f"/{GROUPS}/memory/slurm/uid_0/job_7"
    assert str(available(tmp_path)) == f"400,000,000 by memory.limit_in_bytes=500,000,000 of the cgroup {job}"
    put(tmp_path, f"{GROUPS}/memory/slurm/uid_0/job_7/memory.memsw.limit_in_bytes", 500 * MB)
    put(tmp_path, f"{GROUPS}/memory/slurm/uid_0/job_7/memory.memsw.usage_in_bytes", 450 * MB)  # with what is swapped
    assert available_bytes(tmp_path) == 50 * MB
    put(tmp_path, f"{GROUPS}/memory/slurm/uid_0/job_7/memory.use_hierarchy", 0)  # it does not count its children
    assert available_bytes(tmp_path) == 400 * MB  # but the kernel says to the child what holds


@pytest.mark.parametrize("unified", [GROUPS, f"{GROUPS}/unified"])
def test_versions_1_and_2_at_once(tmp_path, unified):
    process(tmp_path, "4:memory:/job\n0::/user.slice", *V1, mount(unified))
    one(tmp_path, "/job", 500 * MB, 100 * MB)
    (tmp_path / unified / "user.slice").mkdir(parents=True)  # where no controller is
    assert available_bytes(tmp_path) == 400 * MB
    put(tmp_path, "proc/self/cgroup", "4:memory:/elsewhere\n0::/user.slice")
    assert available(tmp_path).group == MACHINE


def test_pages_of_files_can_be_taken(tmp_path):
    """Those that are in use, too, but for those that programs run from."""
    process(tmp_path, "0::/job", V2)
    for stat, left in (
        ("inactive_file 50\nactive_file 0\nfile_mapped 0", 50),
        ("inactive_file 50\nactive_file 40\nfile_mapped 30", 60),
        ("inactive_file 50\nactive_file 40\nfile_mapped 300", 50),  # of which most is shared memory
        ("inactive_file 50\nslab_reclaimable 7", 57),
        ("inactive_file 5000", 100),
        ("inactive_file fifty", 0),
        ("inactive_file\n\n inactive_file 1 2\n\0", 0),
    ):
        two(tmp_path, "/job", 100, max=100, stat=stat)
        assert available_bytes(tmp_path) == left, stat


def test_limit_holds_where_its_usage_cannot_be_read(tmp_path):
    process(tmp_path, "0::/job", V2)
    put(tmp_path, f"{GROUPS}/job/memory.max", 300)
    assert available_bytes(tmp_path) == 300
    put(tmp_path, f"{GROUPS}/job/memory.current", "many")
    assert available_bytes(tmp_path) == 300


def test_container_of_version_1_sees_its_own_group_at_the_mount(tmp_path):
    docker = "/docker/0a1b"
    process(tmp_path, f"4:memory:{docker}/sub", mount(f"{GROUPS}/memory", "cgroup", docker, "ro,memory"))
    one(tmp_path, "", 500 * MB, 100 * MB)
    one(tmp_path, "/sub", NONE_1, 100 * MB)
    assert available_bytes(tmp_path) == 400 * MB
    put(tmp_path, "proc/self/cgroup", "4:memory:/docker/other")  # what is mounted there is not above this process
    assert available(tmp_path).group == MACHINE
    put(tmp_path, f"{GROUPS}/memory/cgroup.procs", f"1\n{PID}")  # but that it says that it is
    assert available_bytes(tmp_path) == 400 * MB


def test_namespace_that_has_its_own_mount(tmp_path):
    process(tmp_path, "0::/", V2)
    two(tmp_path, "", 100 * MB, max=500 * MB)
    assert str(available(tmp_path)) == f"400,000,000 by memory.max=500,000,000 of the cgroup /{GROUPS}"


def test_kernel_tells_version_1_what_holds_above_a_namespace(tmp_path):
    process(tmp_path, "4:memory:/", V1[1])
    one(tmp_path, "", NONE_1, 100 * MB, f"hierarchical_memory_limit {500 * MB}")
    assert str(available(tmp_path)).startswith("400,000,000 by hierarchical_memory_limit=500,000,000 ")


def test_namespace_under_the_mount_of_the_host(tmp_path):
    """The names above the namespace are told to nobody; the group is the one that lists the process."""
    process(tmp_path, "0::/", mount(GROUPS, root="/../../.."))
    two(tmp_path, "", 0)
    two(tmp_path, "/a.slice", 0, max=10 * MB)
    two(tmp_path, "/b.slice/job", 100 * MB, max=500 * MB)
    two(tmp_path, "/b.slice/job/step", 0)
    assert available(tmp_path).group == MACHINE
    two(tmp_path, "", 0, max=1000 * MB)
    assert available_bytes(tmp_path) == 1000 * MB  # what is mounted is above the process, wherever that is
    put(tmp_path, f"{GROUPS}/b.slice/job/step/cgroup.procs", f"17\n{PID}\n{PID}1")
    assert available_bytes(tmp_path) == 400 * MB


@pytest.mark.parametrize("own", ["/../other", "/../..", "/a/../../b"])
def test_process_outside_what_is_mounted(tmp_path, own):
    process(tmp_path, f"0::{own}", V2)
    two(tmp_path, "", 0, max=1)
    two(tmp_path, "/other", 0, max=1)
    put(tmp_path, "memory.max", 1)
    assert available(tmp_path).group == MACHINE


def test_names_with_spaces_and_mounts_that_cover_others(tmp_path):
    place = f"{GROUPS}/my groups"
    lines = [mount(place.replace(" ", "\\040"), root=root) for root in ("/elsewhere", "/a\\040b")]
    process(tmp_path, "0::/a b/job (deleted)", *lines)
    put(tmp_path, f"{place}/job/memory.max", 300)
    assert str(available(tmp_path)) == f"300 by memory.max=300 of the cgroup /{place}/job"


@pytest.mark.parametrize("own", ["4:memory:/job\n0::/job", "4:memory:/", ""])
def test_places_where_mountinfo_says_nothing(tmp_path, own):
    process(tmp_path, own)
    (tmp_path / "proc/self/mountinfo").unlink()
    one(tmp_path, "", 300)
    assert available_bytes(tmp_path) == 300


def test_empty_root_tells_nothing(tmp_path):
    assert [room.group for room in rooms(tmp_path)] == [MACHINE]
    assert cgroups.cpus(Tree(tmp_path)) == {}


def test_pipe_and_folder_in_a_files_place(tmp_path):
    process(tmp_path, "0::/job", V2)
    (tmp_path / GROUPS / "job/memory.max").mkdir(parents=True)
    os.mkfifo(tmp_path / GROUPS / "job/memory.high")
    assert available(tmp_path).group == MACHINE


WORDS = st.sampled_from(
    ["0::/", "4:memory:", "/a", "/b", "/..", "..", " - ", "cgroup2", "cgroup", " rw,memory", f"/{GROUPS}", " ", "\n",
     "30 23 0:26", "max", "12", "-1", "9" * 30, "inactive_file ", "\\040", "\\777", "\0", "é", "٣", "%s"]
)  # fmt: skip
DAMAGED = st.one_of(st.lists(WORDS, max_size=14).map("".join), st.text(max_size=40)).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_damaged_files_never_raise(tmp_path_factory, data):
    root = process(tmp_path_factory.mktemp("damaged"), "4:memory:/a/b\n3:cpu:/a\n0::/a/b", V2, *V1)
    two(root, "/a", 50, max=100)
    two(root, "/a/b", 50, max=100)
    one(root, "/a", 100, 50)
    for place in [path for path in sorted(root.rglob("*")) if path.is_file()] + [root / GROUPS / "a/cpu.max"]:
        if data.draw(st.booleans()):
            place.write_bytes(data.draw(DAMAGED))
    for room in rooms(root):
        assert room.left >= 0
        assert str(room)
    assert all(n > 0 for n in cgroups.cpus(Tree(root)).values())
