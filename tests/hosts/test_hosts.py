"""Training over hosts that share nothing but a network, which is slow, or goes away."""

import os
import subprocess
import time
from contextlib import nullcontext

import pytest

from tests import hosts
from tests.helpers import launcher, live, runs
from tests.helpers.launcher import ROOT
from tests.helpers.live import records_of
from tests.helpers.thinned import thinned


@pytest.fixture
def two():
    if reason := hosts.missing("1gbit"):
        pytest.skip(reason)
    with hosts.Hosts(2, "1gbit") as made:
        yield made


def begin(mpi, two, each, tmp_path, *overrides, epochs):
    path = runs.write(tmp_path / "hosts.yaml", epochs)
    words = ["-m", "psframe.train", path, "--quiet", "fault.late_s=0", *overrides]
    process = live.launch(two.on_first(two.mpi(mpi, each).command(sum(each), words)), **two.environment)
    live.trains(process, path)
    return process, path


@pytest.mark.parametrize(
    ("each", "servers"),
    thinned([((2, 2), 1), ((1, 3), 1), ((3, 1), 1), ((2, 1, 1, 2), 1), ((2, 1, 1, 2), 4), ((1, 3), 2)], kept=(1,)),
)
def test_hosts_end_in_the_bits_of_one(mpi, two, tmp_path, each, servers):
    n_workers = sum(each) - servers
    with hosts.Hosts(len(each), "1gbit") if len(each) > 2 else nullcontext(two) as several:
        process, path = begin(mpi, several, each, tmp_path, f"sync={{mode: sync_ps, servers: {servers}}}", epochs=2)
        err = live.ends(process, path)
    assert process.returncode == 0, err
    over_hosts = records_of(tmp_path)
    assert over_hosts[0]["n_nodes"] == len(each)
    assert over_hosts[0]["n_workers"] == n_workers
    assert over_hosts[0]["collective"] == ("hierarchical" if servers == 1 else "buffer")
    one = ("sync.mode=sync_ps", f"record.dir={tmp_path / 'one' / 'runs'}")
    assert launcher.train(mpi, n_workers + 1, path, *one).status == 0
    assert [record["params_sha256"] for record in over_hosts] == runs.hashes_of(tmp_path / "one")


@pytest.mark.full
def test_link_that_is_cut_for_two_seconds_is_waited_for(mpi, two, tmp_path):
    process, path = begin(mpi, two, (2, 2), tmp_path, "sync.mode=allreduce", epochs=40)
    two.link(1, "down")
    time.sleep(2)
    n_before = len(records_of(tmp_path))
    assert n_before < 40
    two.link(1, "up")
    err = live.ends(process, path)
    assert process.returncode == 0, err
    assert [record["epoch"] for record in records_of(tmp_path)] == list(range(1, 41))


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(("sync={mode: allreduce, deadline_s: 12}",), marks=pytest.mark.full),
        pytest.param(("sync={mode: sync_ps, server: colocated, servers: 2, deadline_s: 12}",), marks=pytest.mark.full),
        ("sync={mode: sync_ps, deadline_s: 12}", "collective=buffer"),
    ],
)
def test_host_that_is_cut_off_is_named_after_the_deadline(mpi, two, tmp_path, keys):
    process, path = begin(mpi, two, (2, 2), tmp_path, *keys, epochs=1000)
    two.link(1, "down")
    told = live.says(process, "psframe:")
    assert f"node 1 ({two.names[1]}) did not come to an exchange for 12 s" in told
    assert f"cannot be reached from {two.names[0]}" in told
    assert process.wait(300) != 0
    two.link(1, "up")  # what is left there hears of it
    live.ends(process, path)


@pytest.mark.full
@pytest.mark.parametrize("server", ["dedicated, servers: 3", "colocated"])
def test_host_that_is_cut_off_from_several_is_named_alone(mpi, tmp_path, server):
    """Of those that wait one tells, and nobody calls another that waits late."""
    if reason := hosts.missing("1gbit"):
        pytest.skip(reason)
    with hosts.Hosts(4, "1gbit") as four:
        keys = (f"sync={{mode: sync_ps, server: {server}, deadline_s: 10}}", "fault.late_s=4")
        process, path = begin(mpi, four, (2, 2, 2, 2), tmp_path, *keys, epochs=1000)
        four.link(2, "down")
        told = []
        while not told or "did not come" not in told[-1]:
            told.append(process.stderr.readline())
            assert told[-1], told
        assert process.wait(300) != 0
        four.link(2, "up")
        told += live.ends(process, path).splitlines()
    own = f"cannot be reached from {four.names[2]}"  # what the lost one thinks of the others
    ours = [line for line in told if line.startswith("psframe:") and own not in line]
    assert len(ours) == 1, told
    (line,) = ours
    assert f"node 2 ({four.names[2]}) did not come to an exchange for 10 s" in line


def launched(mpi, two, tmp_path, hostfile, *command, agent=hosts.AGENT, options=()):
    """Run launch/hosts.sh on the first host."""
    (tmp_path / "hosts.txt").write_text(hostfile)
    path = f"{mpi.prefix / 'bin'}:{os.environ['PATH']}"
    more = " ".join((*mpi.flags, *hosts.NETWORK)) if mpi.name == "openmpi" else ""
    words = ["bash", "launch/hosts.sh", "--agent", str(agent), *options, str(tmp_path / "hosts.txt"), *command]
    environment = {**os.environ, **two.environment, "PATH": path, "MPIRUN_FLAGS": more}
    return subprocess.run(two.on_first(words), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_host_short_of_shared_memory_is_named_before_mpi_starts(mpich, two, tmp_path):
    path = runs.write(tmp_path / "hosts.yaml", 1, "continue")
    command = two.on_first(two.mpi(mpich, 2).command(4, ["-m", "psframe.train", path]))
    env = {**os.environ, **two.environment, "PSFRAME_SHM_2": "1m"}
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "/dev/shm must have 2,120,000 bytes for what 2 ranks" in ended.stderr
    assert f"got 1,048,576 on {two.names[1]}; mount it larger" in ended.stderr


@pytest.mark.each_mpi
@pytest.mark.parametrize("command", [("psframe.train", "configs/quickstart.yaml"), ("psframe.bench", "step")])
def test_host_without_an_mpi_is_named_and_nobody_waits_for_it(mpi, two, command):
    lacks = f'case $(hostname) in {two.names[1]}) export MPI4PY_LIBMPI=/nowhere; esac; exec "$@"'
    spread = two.mpi(mpi, 2)
    words = [str(mpi.prefix / "bin" / "mpirun"), *spread.flags, "-n", "4", "sh", "-c", lacks, "sh"]
    words = two.on_first([*words, str(mpi.python), "-m", *command])
    env = {**os.environ, **two.environment}
    ended = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended
    (told,) = [line for line in ended.stderr.splitlines() if line.startswith("psframe:")]
    assert f"an MPI must be installed, got none on {two.names[1]} (" in told


@pytest.mark.full
def test_hostfile_says_where_ranks_go(mpi, two, tmp_path):
    path = runs.write(tmp_path / "hosts.yaml", 1)
    first, second = two.addresses
    train = ("mpirun", "-n", "3", "python", "-m", "psframe.train", path, "--quiet")
    ended = launched(mpi, two, tmp_path, f"# two hosts\n\n{first}:1  # this one\n{second} slots=2", *train)
    assert ended.returncode == 0, ended.stderr
    assert f"{first}:1,{second}:2 " in ended.stderr
    (record,) = records_of(tmp_path)
    assert (record["n_nodes"], record["n_ranks"]) == (2, 3)


@pytest.mark.full
def test_ssh_reaches_hosts(mpi, two, tmp_path):
    """It takes no environment along, so that another host finds another python."""
    if not os.path.exists(hosts.SSHD):
        pytest.skip("no sshd: apt-get install openssh-server")
    path = runs.write(tmp_path / "hosts.yaml", 1)
    train = ("mpirun", "-n", "4", "python", "-m", "psframe.train", path, "--quiet")
    hostfile = "".join(f"{address}:2\n" for address in two.addresses)
    try:
        with two.ssh(tmp_path) as agent:
            ended = launched(mpi, two, tmp_path, hostfile, *train, agent=agent)
    except TimeoutError as error:
        pytest.skip(str(error))
    assert ended.returncode == 0, ended.stderr
    (record,) = records_of(tmp_path)
    assert (record["n_nodes"], record["n_ranks"]) == (2, 4)


@pytest.mark.full
def test_command_that_starts_mpirun_itself_is_spread_too(mpich, two, tmp_path):
    path = runs.write(tmp_path / "hosts.yaml", 1)
    supervisor = ("python", "-m", "psframe.run", "-n", "2", path, "--quiet")
    ended = launched(mpich, two, tmp_path, "".join(f"{address}:1\n" for address in two.addresses), *supervisor)
    assert ended.returncode == 0, ended.stderr
    assert records_of(tmp_path)[0]["n_nodes"] == 2


WRONG = [
    ("10.77.0.1:1\n10.77.0.9:1\n", "every host must be reached"),
    ("10.77.0.1:0\n", "a line of"),
    ("10.77.0.1 1\n", "a line of"),
    ("-oProxyCommand=true:1\n", "a line of"),
    ("10.77.0.1:1\n10.77.0.1:2\n", "10.77.0.1 twice"),
    ("# nobody\n", "must name a host"),
]


@pytest.mark.parametrize(("hostfile", "said"), thinned(WRONG, (3,)))
def test_hostfile_that_cannot_be_is_one_sentence(mpich, two, tmp_path, hostfile, said):
    ended = launched(mpich, two, tmp_path, hostfile, "mpirun", "-n", "2", "true", options=("--timeout", "15"))
    assert ended.returncode == 2
    assert ended.stderr.count("psframe:") == 1
    assert said in ended.stderr
    assert "10.77.0.9" not in hostfile or "from 10.77.0.9" in ended.stderr
