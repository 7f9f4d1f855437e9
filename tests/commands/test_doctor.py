"""``python -m psframe.doctor``: this machine, and machines whose files were captured."""

import json
import os
import subprocess
import sys

import pytest

from psframe.doctor import measure
from psframe.doctor.machine import placements
from psframe.errors import UserError
from psframe.memory.process_site import Site
from psframe.memory.topology import read
from tests.helpers import forked, launcher
from tests.helpers.launcher import ROOT
from tests.helpers.machine_trees import Memory, hmat, knl, machine, xeon_max
from tests.helpers.thinned import thinned

NODE = read("/").memory[0]
PLAIN = {k: v for k, v in os.environ.items() if k != "MEMKIND_HBW_NODES"}


def doctor(*arguments, before=(), **env):
    if not (before or env):  # which reach what starts, not what has started
        return forked.command("psframe.doctor", *arguments, env=PLAIN)
    command = [*before, sys.executable, "-m", "psframe.doctor", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**PLAIN, **env}, capture_output=True, text=True, timeout=60)


def of(root):
    ended = doctor("--root", root, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_doctor_of_this_machine():
    ended = doctor("--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["n_cpus"] == len(read("/").cpus)
    assert [node["node"] for node in report["nodes"]] == [node.number for node in read("/").nodes]
    assert report["mpi"]["library"]
    assert report["affinity"]
    assert report["permissions"].keys() == {"mbind", "move_pages", "sched_setaffinity"}
    assert set(report["limits"]) == {
        "memlock_bytes", "dev_shm_bytes", "dev_shm_free_bytes", "memory_bytes", "memory_limit", "cpus"
    }  # fmt: skip
    assert report["limits"]["memory_bytes"] > 0
    assert report["bfloat16"] in ("instruction", "multiply-adds", "none")
    for name, found in report["placements"].items():
        assert found["error"] or sum(found["tried"].values()) > 0, name
    assert report["placements"]["default"]["error"] is None


def test_bandwidths_of_all_tiers_are_measured(mpich):
    ended = doctor("--measure", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["measured"]
    tiers = {node.tier for node in read("/").nodes if node.total_bytes}
    assert set(found["gbps"]) == tiers
    assert len(found["move_gbps"]) == 2 * (len(tiers) - 1)
    for rate in (*found["gbps"].values(), *found["move_gbps"].values()):
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
    ended = launcher.run(mpich, 2, ["-m", "psframe.doctor", "--measure"])
    assert ended.status == 2
    assert ended.err.count("must have the machine for itself, got 2 ranks") == 1


def test_measured_rates_are_told_as_keys_of_a_plan():
    rates = {name: {"median": median, "low": 1.0, "high": 9.0} for name, median in (("hbw", 391.26), ("ddr", 84.0))}
    moves = {"hbw to ddr": {"median": 1.234, "low": 1.0, "high": 2.0}, "ddr to hbw": {**rates["ddr"], "median": 2.0}}
    told = measure.lines({"n_threads": 64, "gbps": rates, "move_gbps": moves})
    assert told[-1].strip() == "for a plan of auto: gbps: {hbw: 391.3, ddr: 84}; move_gbps: at most 1.23"
    assert any("hbw to ddr" in line and "moves pages at 1.234 GB/s" in line for line in told)


def test_node_without_room_is_not_measured(tmp_path):
    topology = read(machine(tmp_path, {0: hmat(100_000, 0, cpus="0-3")}))
    with pytest.raises(UserError, match="must have free memory to be measured"):
        measure._room(topology, 0, 1 << 40, 1 << 20)


def test_doctor_fits_one_screen():
    ended = doctor()
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert len(lines) <= 40
    for word in (
        "NUMA node",
        "tier",
        "memkind",
        "memlock",
        "/dev/shm",
        "mbind",
        "MPI",
        "huge pages",
        "interleave",
        "bfloat16",
    ):
        assert word in ended.stdout


def test_declared_memory_is_tried():
    report = json.loads(doctor("--json", MEMKIND_HBW_NODES=str(NODE)).stdout)
    assert report["nodes"][0]["tier"] == "hbw"
    assert report["placements"]["hbw"]["nodes"] == [NODE]
    assert list(report["placements"]["hbw"]["tried"]) == [str(NODE)]


def test_knights_landing_in_snc_4(tmp_path):
    knl(tmp_path, clusters=4)
    report = of(tmp_path)
    assert (report["platform"], report["cluster_mode"], report["memory_mode"]) == ("knl", "SNC-4", "flat")
    assert [node["tier"] for node in report["nodes"]] == ["ddr"] * 4 + ["hbw"] * 4
    assert report["placements"]["hbw"]["nodes"] == [4, 5, 6, 7]
    assert report["placements"]["ddr"]["nodes"] == [0, 1, 2, 3]
    assert "SNC-4" in doctor("--root", tmp_path).stdout


def test_knights_landing_in_cache_mode(tmp_path):
    knl(tmp_path, hbw=0)
    report = of(tmp_path)
    assert report["memory_mode"] == "cache"
    assert "whose MCDRAM is a cache" in report["placements"]["hbw"]["error"]


def test_rank_takes_the_memory_next_to_its_cores(tmp_path):
    topology = read(knl(tmp_path, clusters=4))
    for i in range(4):
        found = placements(Site(topology, topology.node(i).cpus), live=False)
        assert found["hbw"]["nodes"] == [4 + i]
        assert found["ddr"]["nodes"][0] == i
    two = placements(Site(topology, topology.node(1).cpus + topology.node(3).cpus), live=False)
    assert two["hbw"]["nodes"] == [5, 7]  # a rank that may run on two nodes


def test_memory_beside_a_gpu_is_not_taken_for_hbw(tmp_path):
    machine(tmp_path, {0: hmat(200_000, 0, cpus="0-71", gib=480), 8: hmat(180_000, 0, gib=96)})
    report = of(tmp_path)
    assert [node["tier"] for node in report["nodes"]] == ["ddr", "other"]
    assert report["placements"]["interleave"]["nodes"] == [0, 8]


def test_xeon_max(tmp_path):
    report = of(xeon_max(tmp_path))
    assert (report["platform"], report["memory_mode"]) == ("xeon-max", "flat")


def test_memory_that_a_cpuset_bars_is_named(tmp_path):
    machine(tmp_path, {0: Memory("0-3", 8), 1: Memory("", 4)}, allowed="0")
    shown = doctor("--root", tmp_path).stdout
    assert "not allowed (cpuset.mems)" in shown
    knl(tmp_path / "knl", allowed="0")
    assert "cpuset.mems keeps from this process" in of(tmp_path / "knl")["placements"]["hbw"]["error"]


def test_empty_folder_is_a_machine_of_which_nothing_is_known(tmp_path):
    report = of(tmp_path)
    assert report["notes"]
    assert doctor("--root", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--root", "/no/such/folder"], "--root must be a folder"),
        (["--root", "/", "configs/quickstart.yaml"], "leave out --root or the config"),
        (["--josn"], "unrecognized arguments: --josn"),
    ],
)
def test_mistakes_in_the_command(arguments, words):
    ended = doctor(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("overrides", "status", "words"),
    thinned(
        [
            ([], 0, "can run as asked"),
            (["placement.parameters=hbw", f"placement.hbw_nodes=[{NODE}]"], 0, "can run as asked"),
            (["placement.parameters={numa: [4000]}"], 1, "got [4000]"),
            (["placement.parameters={numa: [4000]}", "placement.fallback=ddr"], 1, "fell back to ddr"),
            (["train.epoch=1"], 1, "did you mean 'epochs'"),
        ],
        (1, 3),
    ),
)
def test_config_is_judged_for_the_ranks_it_would_run_on(mpich, config, overrides, status, words):
    ended = launcher.run(mpich, 3, ["-m", "psframe.doctor", config, *overrides])
    assert ended.status == status, ended
    assert ended.out.count("config       ") == 1
    assert words in ended.out
    assert ended.err == ""


def test_ranks_and_their_binding(mpi):
    ended = launcher.run(mpi, 3, ["-m", "psframe.doctor", "--json"])
    assert ended.status == 0, ended
    report = json.loads(ended.out[ended.out.index("{") :])
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
    assert report["oversubscribed"] == (len(os.sched_getaffinity(0)) < 3)


def test_sandbox_denials_are_said():
    sandbox = [sys.executable, "-m", "tests.helpers.denied", "mbind,move_pages"]
    report = json.loads(doctor("--json", before=sandbox).stdout)
    assert report["permissions"]["mbind"].startswith("denied (EPERM")
    assert report["permissions"]["move_pages"].startswith("denied")
    assert report["placements"]["interleave"]["tried"] == {"denied": (1 << 16) // os.sysconf("SC_PAGE_SIZE")}


@pytest.mark.full
def test_config_that_a_sandbox_keeps_from_running_as_asked(mpich, config):
    asked = [config, f"placement.parameters={{numa: [{NODE}]}}"]
    for calls, more, words in (
        ("mbind", [], "mbind is denied"),
        (
            "move_pages",
            ["placement.verify=error"],
            "move_pages, by which placement.verify=error counts pages, is denied",
        ),
        ("move_pages", [], None),
    ):
        command = ["-m", "tests.helpers.denied", calls, str(mpich.python), "-m", "psframe.doctor", *asked, *more]
        ended = launcher.run(mpich, 2, command)
        assert ended.status == (1 if words else 0), ended
        assert (words or "can run as asked") in ended.out


@pytest.mark.full
def test_ranks_are_shown_as_the_config_binds_them(mpich, config):
    for kind in ("compact", "none"):
        ended = launcher.run(
            mpich, len(read("/").cores), ["-m", "psframe.doctor", config, f"affinity={kind}", "--json"]
        )
        ranks = json.loads(ended.out[ended.out.index("{") :])["ranks"]
        assert (ranks[0]["cpus"] == ranks[0]["allowed_cpus"]) == (kind == "none" or len(ranks) == 1)


NO_MPI = (
    "import sys; sys.modules['mpi4py'] = None; from psframe.doctor.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.full
def test_mpi_may_be_missing(config):
    def run(*arguments):
        command = [sys.executable, "-c", NO_MPI, *arguments]
        return subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, timeout=60)

    assert "an MPI must be installed" in run().stdout
    assert run().returncode == 0
    assert run(config).returncode == 1
    assert run("--nonsense").returncode == 2
