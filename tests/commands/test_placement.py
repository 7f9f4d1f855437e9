"""Placement from the command line: what a user sees when it works, falls back, spills, is denied or does not fit."""

import sys

import pytest

from psframe import compiled
from psframe.memory.topology import read
from tests.helpers import launcher
from tests.helpers.launcher import train
from tests.helpers.live import placed_of
from tests.helpers.thinned import thinned

TOPOLOGY = read("/", environ={})
NODE = TOPOLOGY.memory[0]
FAST = f"placement.hbw_nodes=[{NODE}]"


def sandboxed(mpi, calls, config, *overrides):
    command = ["-m", "tests.helpers.denied", calls, str(mpi.python), "-m", "psframe.train", config, *overrides]
    return launcher.run(mpi, 3, command)


@pytest.mark.skipif(bool(TOPOLOGY.hbw), reason="this machine has high-bandwidth memory")
def test_hbw_without_any_is_one_sentence(mpi, config, tmp_path, pool):
    ended = pool(3, mpi).train(config, "placement.parameters=hbw")
    assert ended.status == 2
    said = [line for line in ended.err.splitlines() if "psframe" in line]
    assert len(said) == 1
    assert said[0].startswith(
        "psframe: placement.parameters: hbw must find high-bandwidth memory as NUMA nodes, got none"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(bool(TOPOLOGY.hbw), reason="this machine has high-bandwidth memory")
def test_fallback_is_said_and_recorded(pool, config, tmp_path):
    ended = pool(3).train(config, "placement.parameters=hbw", "placement.fallback=ddr")
    assert ended.status == 0, ended
    assert ended.err.count("placement.parameters=hbw fell back to ddr") == 1
    records, placed = placed_of(tmp_path)
    assert records[0]["placement"]["parameters"] == "hbw -> ddr"
    assert placed["ranks"][2]["roles"]["parameters"]["got"] == "ddr"


@pytest.mark.full
def test_hbw_route_on_declared_memory(mpi, config, tmp_path):
    try:
        compiled.memkind.load()
    except OSError as error:
        pytest.skip(f"memkind is not installed ({error}); Debian: libmemkind0")
    roles = ("parameters", "gradients", "optimizer", "activations", "data", "exchange")
    keys = [f"placement.{role}=hbw" for role in roles]
    keys += ["optimizer.momentum=0.9", "placement.verify=error", "collective=buffer"]
    ended = train(mpi, 3, config, *keys, MEMKIND_HBW_NODES=str(NODE))
    assert ended.status == 0, ended
    assert "warning" not in ended.err
    table = ended.out.split("role ")[1]
    assert all(f"\n{role} " in table for role in roles)
    assert table.count("100.0%") == len(roles)
    records, placed = placed_of(tmp_path)
    for record in records:
        assert record["placed"] == dict.fromkeys(record["pages"], 1.0)
        assert all(list(pages) == [str(NODE)] for pages in record["pages"].values())
    assert placed["hbw_nodes"] == [NODE]
    assert all(of_rank["notes"] == [] for of_rank in placed["ranks"])


WITHOUT_MEMKIND = """
import sys
from psframe.train.__main__ import guarded, main
from psframe.compiled import _memkind
_memkind.LIBRARY = b"libmemkind-that-is-not-there.so.0"
sys.exit(guarded(main, sys.argv[1:]))
"""


@pytest.mark.full
def test_hbw_without_memkind_is_mapped_and_bound(mpich, config, tmp_path):
    keys = ["placement.parameters=hbw", "placement.data=hbw", FAST, "placement.verify=error", "collective=buffer"]
    ended = launcher.run(mpich, 3, ["-c", WITHOUT_MEMKIND, config, *keys])
    assert ended.status == 0, ended
    assert ended.err.count("psframe: warning: memkind is not installed") == 1
    assert "hbw memory comes from mmap and mbind" in ended.err
    assert placed_of(tmp_path)[0][-1]["placed"] == {"parameters": 1.0, "data": 1.0}


@pytest.mark.parametrize("spec", thinned(["hbw", f"{{numa: [{NODE}]}}", "interleave"], (0,)))
def test_mbind_denied_is_said_and_pages_are_still_counted(mpich, config, tmp_path, spec):
    ended = sandboxed(mpich, "mbind", config, f"placement.parameters={spec}", f"placement.data={spec}", FAST)
    assert ended.status == 0, ended
    assert ended.err.count("mbind is denied here (Operation not permitted)") == 1
    records, placed = placed_of(tmp_path)
    assert records[-1]["pages"]["parameters"] == {str(NODE): 2}  # of the node, old and new
    assert any("mbind is denied" in note for note in placed["ranks"][0]["notes"])


@pytest.mark.full
def test_placement_that_cannot_be_proven_is_said(mpich, config, tmp_path):
    spec = f"placement.parameters={{numa: [{NODE}]}}"
    ended = sandboxed(mpich, "mbind,move_pages", config, spec)
    assert ended.status == 0, ended
    assert ended.err.count("but move_pages is denied here") == 1
    assert placed_of(tmp_path)[0][0]["pages"]["parameters"] == {"denied": 2}
    ended = sandboxed(mpich, "mbind,move_pages", config, spec, "placement.verify=error", "name=again")
    assert ended.status == 2
    assert ended.err.count("move_pages is denied here") == 1


@pytest.mark.full
def test_ranks_that_may_not_be_bound_run_where_they_are(mpich, config):
    ended = sandboxed(mpich, "sched_setaffinity", config, "affinity=compact", "name=three")
    assert ended.status == 0, ended
    if len(TOPOLOGY.cores) > 1:
        command = ["-m", "tests.helpers.denied", "sched_setaffinity", str(mpich.python), "-m", "psframe.train", config]
        ended = launcher.run(mpich, 2, [*command, "affinity=compact"])
        assert ended.err.count("sched_setaffinity is denied here (Operation not permitted)") == 1


def test_plan_shows_nodes_and_what_is_asked_of_them(pool, config, tmp_path):
    ended = pool(3).train(config, "--dry-run", "placement.parameters=hbw", FAST)
    assert ended.status == 0, ended
    rows = ended.out.split("CPUs and placement by rank\n")[1].splitlines()
    assert [row.split()[0] for row in rows[1:4]] == ["0", "1", "2"]
    assert f"hbw {NODE}" in rows[1]
    assert "bytes asked of each NUMA node" in ended.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("placement.parameter=hbw", "did you mean 'parameters'"),
        ("placement.parameters=hwb", "did you mean 'hbw'"),
        ("placement.parameters={name: hbw, policy: strict}", "placement.parameters.policy must be one of bind"),
        ("placement.parameters={name: hbw, huge_page: 2M}", "did you mean 'huge_pages'"),
        ("placement.parameters=numa", "placement.parameters.nodes is required"),
        ("placement.parameters={numa: [-1]}", "placement.parameters.nodes[0] must be a whole number >= 0"),
        ("placement.parameters=7", "placement.parameters must be a placement, got 7"),
        ("placement=hbw", "placement must be auto, or have a placement for each role"),
        ("placement={name: auto}", "write, say, placement.parameters=hbw"),
        ("placement.parameters={default: default, conv1: {hbw: 3}}", "conv1 must be a placement, got"),
        ("placement.parameters={default: default, conv*: ddr, conv1: ddr}", "put special patterns before general ones"),
        ("placement.fallback=hbw", "placement.fallback must be one of none, ddr, default"),
        ("placement.spill=[everything]", "placement.spill"),
        ("placement.minimum=2", "placement.minimum must be a number <= 1"),
        ("placement.hbw_nodes=[4000]", "placement.hbw_nodes must list online NUMA nodes"),
        ("affinity=cores", "affinity must be one of numa, compact, scatter, none"),
        ("placement.parameters=tests.helpers.own:SignSGD", "placement.parameters.lr is required"),
        ("placement.parameters=tests.helpers.own:Words", "policy must be a psframe.memory.pages.Policy"),
        ("placement.parameters=json:loads", "placement.parameters must name a placement, got 'json:loads'"),
        ("placement.parameters={name: tests.helpers.own:SignSGD, lr: 1}", "placement.parameters must name a placement"),
        ("placement.parameters=tests.helpers.own:Offline", "nodes must be NUMA nodes with memory"),
        ("collective=tests.helpers.own:Scratch", "memory must be for a role, got 'scratch'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(pool, config, override, words):
    ended = pool(2).train(config, override)
    assert ended.status == 2, ended
    assert words in ended.err
    assert ended.err.count("psframe:") == 1
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("module", thinned(["train", "doctor"], (0,)))
def test_mistaken_variable_is_told_once_and_nobody_waits(mpi, config, module):
    ended = launcher.run(mpi, 3, ["-m", f"psframe.{module}", config], MEMKIND_HBW_NODES="fast")
    assert ended.status == 2, ended
    assert ended.err.count("MEMKIND_HBW_NODES must list online NUMA nodes") == 1
    assert "Traceback" not in ended.err


def test_empty_is_what_the_readme_says():
    assert sys.modules["psframe.memory"].empty(3, placement="default").shape == (3,)
