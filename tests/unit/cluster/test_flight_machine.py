"""State of a machine and of its processes, read from trees as Linux writes them, whole and damaged."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.cluster.flight import machine
from psframe.cluster.flight.machine import TICK
from psframe.memory.sysfs import Tree
from tests.helpers import cgroup_trees
from tests.helpers.machine_trees import put

PRESSURE = "some avg10=1.25 avg60=0.10 avg300=0.01 total=123456\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=456\n"
FILES = {
    "loadavg": "1.50 0.25 12.00 3/456 7890\n",
    "pressure/cpu": "some avg10=0.00 avg60=0.10 avg300=0.01 total=7\n",  # older kernels have no line more of it
    "pressure/memory": PRESSURE,
    "pressure/io": PRESSURE,
    "meminfo": "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nDirty: 3 kB\n"
    "Writeback: 4 kB\nHugePages_Total: 0\n",
    "stat": "cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n",
    "vmstat": "nr_free_pages 1\npswpin 11\npswpout 12\npgmajfault 3\n",
}
#: of a process whose name is made to mislead
PROCESS = {
    "stat": "77 (a) R (b\n) S 1 " + " ".join(map(str, range(5, 53))) + "\n",
    "schedstat": "1000 2500000000 3\n",
    "status": "Name:\ta\nState:\tS (sleeping)\nVmRSS:\t  1234 kB\nVmSwap:\t0 kB\nThreads:\t3\n"
    "Cpus_allowed_list:\t0-3,8\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n",
    "wchan": "futex_wait_queue",
}
#: what is in place of a file
DAMAGE = [
    b"",
    b"\n\n",
    b"x",
    b"\xff\xfe\x00",
    b"1 2",
    b"a: b c",
    b"cpu " + b"x " * 60,
    b"9" * 5000,
    b"() S -",
    b"\0" * 64,
]


@pytest.fixture
def proc(tmp_path):
    """A tree of a machine, with a process, 77."""
    for name, text in [*FILES.items(), *((f"77/{name}", text) for name, text in PROCESS.items())]:
        put(tmp_path, f"proc/{name}", text.strip())
    return tmp_path / "proc"


def told(proc):
    return machine.machine(str(proc), proc, Tree(proc / "none"))


def test_machine_tells_what_the_kernel_does(proc):
    found = told(proc)
    assert found["cores"] == os.cpu_count()
    assert found["load"] == [1.5, 0.25, 12.0]
    whole = {"some": 123456.0, "some_10s": 1.25, "full": 456.0, "full_10s": 0.5}
    assert found["pressure"] == {"cpu": {"some": 7.0, "some_10s": 0.0}, "memory": whole, "io": whole}
    assert found["memory"] == {
        **{"MemTotal": 2048 << 10, "MemAvailable": 1000 << 10, "SwapTotal": 0, "SwapFree": 0},
        **{"Dirty": 3 << 10, "Writeback": 4 << 10},
    }
    assert found["stolen_s"] == 250 / TICK
    assert found["swapped"] == {"pswpin": 11, "pswpout": 12}
    assert 0 < found["disk"]["free"] <= found["disk"]["size"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_machine_tells_of_its_cgroups(tmp_path):
    cgroup_trees.process(tmp_path, "0::/job/task", cgroup_trees.V2)
    for path, throttled, killed, limit in (("/job", 5, 3, 900), ("/job/task", 2, 1, "max")):
        events = f"low 0\nhigh {killed}\nmax 6\noom 9\noom_kill {killed}"
        cgroup_trees.two(tmp_path, path, 300, max=limit, events=events)
        for of in ("memory", "io"):
            put(tmp_path, f"{cgroup_trees.GROUPS}{path}/{of}.pressure", PRESSURE)
        text = f"usage_usec 1\nnr_periods 7\nnr_throttled {throttled}\nthrottled_usec {throttled * 1000}\n"
        put(tmp_path, f"{cgroup_trees.GROUPS}{path}/cpu.stat", text)
    found = machine.machine(".", tmp_path, Tree(tmp_path))["cgroup"]
    assert found.pop("memory_left") == 600
    assert (found.pop("memory_us"), found.pop("io_us")) == (456, 123456)
    task, job = (found["groups"].pop(f"{cgroup_trees.GROUPS}/{path}") for path in ("job/task", "job"))
    assert task == {"periods": 7, "throttled": 2, "throttled_us": 2000, "killed": 1, "reached": 7}
    assert job == {"periods": 7, "throttled": 5, "throttled_us": 5000, "killed": 3, "reached": 9}


def test_machine_counts_what_its_own_cgroup_waits_for(tmp_path):
    """Those above it have other tasks, too."""
    cgroup_trees.process(tmp_path, "0::/job/task", cgroup_trees.V2)
    for path in ("/job", "/job/task"):
        cgroup_trees.two(tmp_path, path, 300, max="max")
    put(tmp_path, f"{cgroup_trees.GROUPS}/job/memory.pressure", PRESSURE)
    found = machine.machine(".", tmp_path, Tree(tmp_path))["cgroup"]
    assert (found["memory_us"], found["io_us"]) == (0, 0)


def test_machine_tells_of_cgroups_of_version_1(tmp_path):
    own = "9:cpu,cpuacct:/job\n4:memory:/job"
    cgroup_trees.process(tmp_path, own, *cgroup_trees.V1)
    cgroup_trees.one(tmp_path, "/job", 900, 300)
    put(tmp_path, f"{cgroup_trees.GROUPS}/cpu,cpuacct/job/cpu.stat", "nr_throttled 4\nthrottled_time 7000999")
    put(tmp_path, f"{cgroup_trees.GROUPS}/memory/job/memory.oom_control", "under_oom 0\noom_kill 2")
    put(tmp_path, f"{cgroup_trees.GROUPS}/memory/job/memory.failcnt", "8")
    found = machine.machine(".", tmp_path, Tree(tmp_path))["cgroup"]
    assert (found.pop("memory_us"), found.pop("io_us")) == (0, 0)
    assert found.pop("memory_left") == 600
    counts = {name: n for group in found["groups"].values() for name, n in group.items() if n}
    assert counts == {"throttled": 4, "throttled_us": 7000, "killed": 2, "reached": 8}


@pytest.mark.parametrize(
    "damage", [b"nr_throttled", b"nr_throttled x\nthrottled_usec -5", b"\xff 1", b"a b c\n\n"], ids=range(4)
)
def test_machine_with_damaged_cgroups_tells_of_none(tmp_path, damage):
    cgroup_trees.process(tmp_path, "0::/job", cgroup_trees.V2)
    cgroup_trees.two(tmp_path, "/job", 300, max="max")
    for name in ("cpu.stat", "memory.events", "memory.pressure", "io.pressure"):
        (tmp_path / cgroup_trees.GROUPS / "job" / name).write_bytes(damage)
    found = machine.machine(".", tmp_path, Tree(tmp_path))["cgroup"]
    assert (found["memory_us"], found["io_us"]) == (0, 0)
    for group in found["groups"].values():
        assert set(group.values()) == {0}
        assert {"periods", "throttled", "throttled_us", "killed", "reached"} == group.keys()


KEYS = {"loadavg": "load", "meminfo": "memory", "stat": "stolen_s", "vmstat": "swapped"}


@pytest.mark.parametrize("name", FILES)
def test_machine_leaves_out_what_is_missing(proc, name):
    whole = told(proc)
    (proc / name).unlink()
    key = KEYS.get(name, "pressure")
    found = told(proc)
    assert key in whole
    assert key not in found
    assert whole.keys() - found.keys() == {key}


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
@pytest.mark.parametrize("name", FILES)
def test_machine_with_a_damaged_file_tells_the_rest(proc, name, damage):
    whole, key = told(proc), KEYS.get(name, "pressure")
    (proc / name).write_bytes(damage)
    found = told(proc)
    assert found.keys() | {key} == whole.keys()
    assert len(json.dumps(found)) < 10_000


@pytest.mark.parametrize("folder", ["none", "loadavg", "a\0b"], ids=["missing", "file", "nul"])
def test_machine_with_any_folder_tells_the_rest(proc, folder):
    found = machine.machine(f"{proc}/{folder}", proc, Tree(proc))
    assert ("disk" in found) == (folder == "loadavg")
    assert found["load"] == [1.5, 0.25, 12.0]


def test_machine_without_any_file_tells_of_cores_and_disk(tmp_path):
    found = machine.machine(str(tmp_path), tmp_path / "none", Tree(tmp_path))
    assert found.keys() - {"frequency", "cgroup"} == {"cores", "disk"}  # one is of this machine, one is of none


def test_machine_is_this_one_by_default():
    found = machine.machine(".")
    assert {"cores", "load", "memory", "stolen_s", "disk", "cgroup"} <= found.keys()
    assert 0 < found["memory"]["MemAvailable"] <= found["memory"]["MemTotal"]
    json.dumps(found, allow_nan=False)


def test_process_tells_what_the_kernel_does(proc):
    assert machine.process(77, proc) == {
        "state": "S",
        "cpu_s": (14 + 15) / TICK,  # fields 14 and 15 of proc(5), counted from 1
        "faults": 10,
        "major_faults": 12,
        "core": 39,
        "waited": 2.5,
        "status": {
            **{"VmRSS": "1234 kB", "VmSwap": "0 kB", "Threads": "3", "Cpus_allowed_list": "0-3,8"},
            **{"voluntary_ctxt_switches": "5", "nonvoluntary_ctxt_switches": "6"},
        },
        "call": "futex_wait_queue",
    }


def test_process_that_runs_is_in_no_call(proc):
    (proc / "77" / "wchan").write_text("0")
    assert machine.process(77, proc)["call"] == ""


@pytest.mark.parametrize("name", PROCESS)
def test_process_leaves_out_what_is_missing(proc, name):
    (proc / "77" / name).unlink()
    keys = {"stat": {"state", "cpu_s", "faults", "major_faults", "core"}, "schedstat": {"waited"}, "wchan": {"call"}}
    keys["status"] = {"status"}
    assert machine.process(77, proc).keys() == set().union(*keys.values()) - keys[name]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
@pytest.mark.parametrize("name", PROCESS)
def test_process_with_a_damaged_file_tells_the_rest(proc, name, damage):
    whole = machine.process(77, proc)
    (proc / "77" / name).write_bytes(damage)
    found = machine.process(77, proc)
    others = {key for key in whole if (key in ("waited", "status", "call")) == (name == "stat")}
    kept = others - ({"schedstat": {"waited"}, "status": {"status"}, "wchan": {"call"}}.get(name, set()))
    assert {key: found[key] for key in kept} == {key: whole[key] for key in kept}
    assert len(json.dumps(found)) < 10_000


def test_process_that_does_not_exist_is_nothing(proc):
    assert machine.process(78, proc) == {}
    assert machine.process(-1) == {}
    assert machine.process(1 << 40) == {}


def test_process_that_has_ended_and_is_gone_is_nothing():
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(60)
    assert machine.process(ended.pid) == {}


def test_process_that_has_ended_and_is_not_waited_for_is_told():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert machine.process(ended.pid)["state"] == "Z"


def test_process_that_is_stopped_is_told():
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        assert machine.process(stopped.pid)["state"] == "T"
        stopped.kill()


def test_process_that_computes_takes_time():
    before = machine.process(os.getpid())["cpu_s"]
    while machine.process(os.getpid())["cpu_s"] == before:
        sum(range(10_000))
    assert machine.process(os.getpid())["state"] == "R"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("some avg10=total0123456789.-:\n \tkB)(R", max_size=200))
def test_files_of_any_text_never_raise(tmp_path, text):
    shutil.rmtree(tmp_path / "proc", ignore_errors=True)
    for name in [*FILES, *(f"77/{name}" for name in PROCESS)]:
        put(tmp_path, f"proc/{name}", text)
    told(tmp_path / "proc")
    machine.process(77, tmp_path / "proc")


@pytest.mark.parametrize("line", ["some avg10=0.00", "some total=5", "some"])
def test_pressure_with_a_value_missing_is_left_out(proc, line):
    (Path(proc) / "pressure" / "io").write_text(line)
    assert "pressure" not in told(proc)
