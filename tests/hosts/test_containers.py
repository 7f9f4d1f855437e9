"""launch/containers.sh: ranks in containers with namespaces of their own train to the bits of ranks that have none."""

import csv
import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.helpers import launcher
from tests.helpers.configs import TINY
from tests.helpers.live import records_of
from tests.helpers.thinned import thinned
from tests.hosts.containers import end, environment, left_behind, start

TRAIN = "mpirun -n 4 python -m psframe.train tiny.yaml --quiet"

#: what every rank says of itself: its namespaces; then the last rank comes late, and then it seems to die
PROBE = """
import json, os, sys, time
from mpi4py import MPI
from psframe.cluster.joining import join
from psframe.cluster.gates import PeerLost
spaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "ipc", "pid", "mnt")}
cluster = join()
last = cluster.rank == cluster.n_ranks - 1
found = {"nodes": cluster.n_nodes, "node": cluster.node, "pid": os.getpid(), "spaces": spaces, "lost": None}
if last:
    time.sleep(1)  # the others look whether it lives, by now
cluster.barrier()
if cluster.n_nodes == 1 and last:
    os.close(cluster.rendezvous.fd)  # drops its lock, as its end would
elif cluster.n_nodes == 1:
    try:
        cluster.rendezvous.together()
    except PeerLost as lost:
        found["lost"] = lost.ranks
every = MPI.COMM_WORLD.gather(found)
if every:
    json.dump(every, open(sys.argv[1], "w"))
"""

SLEEPS = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def mpi():
    return launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")


@pytest.fixture(scope="module")
def able():
    """Skip where no container or no network can be made."""
    if os.getuid() != 0:
        pytest.skip("containers on networks of their own are made by root")
    for needed in ("podman", "ip", "nsenter", "flock"):
        if not shutil.which(needed):
            pytest.skip(f"no {needed} here (Debian: podman runc iproute2 util-linux)")
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
    for runtime in ([], ["--runtime", "runc"]):
        plain = ["podman", *runtime, "run", "--rm", "--network", "none", *limits, "--rootfs", "/:O", "true"]
        tried = subprocess.run(plain, capture_output=True, text=True, timeout=60)
        if tried.returncode == 0:
            break
    else:
        pytest.skip(f"podman starts no container here: {tried.stderr.strip()}")
    name = f"psframe-test-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=30)
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here: {tried.stderr.strip()}")
    subprocess.run(["ip", "netns", "del", name], timeout=30)


@pytest.fixture(scope="module")
def runs(able, mpi, tmp_path_factory):
    """Train on the host, then on two containers with memory of their own and, at the same time, with memory shared."""
    where = tmp_path_factory.mktemp("containers")
    (where / "tiny.yaml").write_text(TINY)
    (where / "probe.py").write_text(PROBE)
    host = subprocess.run(["sh", "-c", f"{TRAIN} record.dir=host/runs"], cwd=where, env=environment(mpi), timeout=120)
    assert host.returncode == 0
    found = {}
    for name, option in (("apart", []), ("shared", ["--share-ipc"])):
        (where / f"tmp-{name}").mkdir()
        both = f"mpirun -n 4 python probe.py {name}.json && exec {TRAIN} record.dir={name}/runs"
        env = environment(mpi, TMPDIR=str(where / f"tmp-{name}"))
        found[name] = start(["-c", "2", *option, "sh", "-c", both], cwd=where, env=env)
    for name, process in found.items():
        status, out, err = end(process)
        assert (status, left_behind(process, where / f"tmp-{name}")) == (0, []), f"{name}: {out}\n{err}"
    return where


@pytest.mark.full
@pytest.mark.parametrize(("name", "nodes", "collective"), [("apart", 2, "hierarchical"), ("shared", 1, "shared")])
def test_containers_train_to_the_bits_of_none(name, nodes, collective, runs):
    plain, found = records_of(runs / "host"), records_of(runs / name)
    assert [epoch["params_sha256"] for epoch in found] == [epoch["params_sha256"] for epoch in plain]
    assert {(epoch["n_nodes"], epoch["collective"], epoch["n_ranks"]) for epoch in found} == {(nodes, collective, 4)}
    assert {epoch["n_nodes"] for epoch in plain} == {1}


@pytest.mark.parametrize(("name", "nodes"), [("apart", 2), ("shared", 1)])
def test_containers_have_namespaces_of_their_own(name, nodes, runs):
    ranks = json.loads((runs / f"{name}.json").read_text())
    assert {rank["nodes"] for rank in ranks} == {nodes}
    assert [rank["node"] for rank in ranks] == ([0, 0, 1, 1] if nodes == 2 else [0] * 4)
    for space in ("net", "ipc", "pid", "mnt"):
        found = [rank["spaces"][space] for rank in ranks]
        assert found[0] == found[1] != found[2] == found[3], space  # blocks of ranks
        assert os.readlink(f"/proc/self/ns/{space}") not in found


def test_process_numbers_that_containers_share_confuse_nobody(runs):
    ranks = json.loads((runs / "shared.json").read_text())
    assert len({rank["pid"] for rank in ranks}) < 4
    lost = [rank["lost"] for rank in ranks]
    assert lost.pop() is None
    assert [3] in lost  # who notices later hears of it, and not of whom
    assert all(one in ([3], []) for one in lost)


@pytest.mark.full
def test_collectives_are_measured_on_host_and_over_containers(able, mpi, tmp_path):
    """Table 5 of Woo et al. in one command."""
    measure = (
        "python -m psframe.bench collectives --ranks 2 --size 0.1 --repetitions 2 --method c,buffer,shared --out out"
    )
    env = environment(mpi)
    status, out, err = end(start(["-c", "0,1,2", *measure.split()], cwd=tmp_path, env=env))
    assert status == 0, (out, err)
    status, out, err = end(start(["-c", "2", "--share-ipc", *measure.split()], cwd=tmp_path, env=env))
    assert status == 0, (out, err)
    rows = list(csv.DictReader((tmp_path / "out" / "collectives.csv").open()))
    found = {}
    for row in rows:
        found.setdefault((row["environment"], row["share_ipc"], row["n_nodes"]), set()).add(row["method"])
    assert found == {
        ("host", "0", "1"): {"c", "buffer", "shared"},
        ("1 container", "0", "1"): {"c", "buffer", "shared"},
        ("2 containers", "0", "2"): {"c", "buffer"},
        ("2 containers", "1", "1"): {"c", "buffer", "shared"},
    }


@pytest.mark.parametrize(
    ("sent", "status", "count"),
    thinned(
        [(sent, how, count) for count in ("2", "2,1") for sent, how in ((signal.SIGINT, 130), (signal.SIGTERM, 143))],
        (2,),
    ),
)
def test_containers_leave_nothing_when_broken_off(sent, status, count, able, mpi, tmp_path):
    (tmp_path / "tmp").mkdir()
    env = environment(mpi, TMPDIR=str(tmp_path / "tmp"))
    process = start(["-c", count, "--share-ipc", "mpirun", "-n", "2", "python", "-c", SLEEPS], cwd=tmp_path, env=env)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
    finally:
        ended = end(process, 60)
    assert (ended[0], left_behind(process, tmp_path / "tmp")) == (status, []), ended


BLOCKS = """
import json, os
from mpi4py import MPI
hosts = MPI.COMM_WORLD.gather(os.uname().nodename)
if hosts:
    json.dump([hosts.index(host) for host in hosts], open("blocks.json", "w"))
"""

COMMANDS = """
mpirun -n 5 python blocks.py
mpirun --version | grep -q HYDRA || echo 'no version'
mpirun python blocks.py || echo $?
mpirun -n few python blocks.py || echo $?
mpirun -n 2 sh -c 'exit 7'
"""


@pytest.mark.full
def test_ranks_are_spread_in_blocks_and_their_status_is_told(able, mpi, tmp_path):
    (tmp_path / "blocks.py").write_text(BLOCKS)
    status, out, err = end(start(["-c", "4", "sh", "-c", COMMANDS], cwd=tmp_path, env=environment(mpi)))
    assert json.loads((tmp_path / "blocks.json").read_text()) == [0, 0, 2, 3, 4]
    assert (status, out.split()[:2]) == (7, ["2", "2"])
    assert [line for line in err.splitlines() if line.startswith("psframe: ")] == [
        "psframe: mpirun over containers must start with -n N, got 'python'; give the number of ranks first",
        "psframe: mpirun -n must be followed by a number of ranks, got 'few'; give one",
    ]


@pytest.mark.parametrize(("nodes", "told"), [("0", ""), ("1023", "gives no cpusets")])
def test_containers_are_bound(nodes, told, able, mpi, tmp_path):
    """The answer is that of a machine with two nodes; the containers are bound on this one."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("there is one CPU here, and nothing to divide")
    answer = f'case "$*" in *quadrants*) echo {cpus[0]} {nodes}; echo {cpus[1]} {nodes}; exit ;; esac'
    (tmp_path / "podman").write_text(f'#!/bin/sh\n{answer}\nexec {shutil.which("podman")} "$@"\n')
    (tmp_path / "podman").chmod(0o755)
    env = environment(mpi)
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    mine = "MPI.COMM_WORLD.gather(sorted(os.sched_getaffinity(0)))"
    show = f"import os; from mpi4py import MPI; print({mine} or '', end='')"
    status, out, err = end(start(["-c", "2", "mpirun", "-n", "3", "python", "-c", show], cwd=tmp_path, env=env))
    assert (status, json.loads(out)) == (0, [[cpus[0]], [cpus[0]], [cpus[1]]]), err
    assert told in err
    assert bool(err) == bool(told)
