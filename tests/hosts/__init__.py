"""Several hosts on one machine: network namespaces on a switch, each with a name and a /dev/shm of its own."""

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from time import monotonic

AGENT = Path(__file__).with_name("agent")
SSHD = "/usr/sbin/sshd"
#: what Open MPI has to be told, which looks for networks itself
NETWORK = (
    *("--mca", "btl", "tcp,sm,self", "--mca", "btl_tcp_if_include", "10.77.0.0/24"),
    *("--prtemca", "prte_if_include", "10.77.0.0/24"),
)

MADE = count()


@cache
def missing(rate=None):
    """Return why there can be no hosts here, with links of such a rate, or None."""
    if os.geteuid():
        return "hosts are network namespaces, which root alone may make"
    if lacking := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"no {lacking[0]}: apt-get install iproute2"
    try:
        with Hosts(2, rate) as two:
            subprocess.run(two.on_first(["true"]), check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    return None


class Hosts:
    """Hosts 10.77.0.1, 10.77.0.2, ... while its context lasts, after which nothing of them is left.

    Parameters
    ----------
    n : int
    rate : str, optional
        What a link carries each way, as ``tc`` has it: ``1gbit``. Without, as much as the machine copies.

    Attributes
    ----------
    addresses : list of str
        By host.
    """

    def __init__(self, n, rate=None):
        self.rate = rate
        self.prefix = f"ps{os.getpid()}x{next(MADE) % 100}-"  # a network device's name has 15 letters at most
        self.switch = f"{self.prefix}sw"
        self.names = [f"{self.prefix}{i + 1}" for i in range(n)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(n)]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge", "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self.switch)
            _ip("-n", self.switch, "link", "set", name, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            if self.rate:
                self._limit(name, self.rate, "256kb")

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            self.stop(name)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def mpi(self, mpi, n_each, *flags):
        """Return an MPI that starts so many ranks on each of them, an int or a sequence, with more flags."""
        each = [n_each] * len(self.names) if isinstance(n_each, int) else n_each
        spread = ",".join(f"{address}:{n}" for address, n in zip(self.addresses, each, strict=True))
        if mpi.name == "mpich":
            asked = ("-hosts", spread, "-launcher", "ssh", "-launcher-exec", str(AGENT))
        else:
            asked = ("--mca", "plm_ssh_agent", str(AGENT), "--host", spread, *NETWORK)
        return replace(mpi, flags=(*mpi.flags, *asked, *flags))

    @contextmanager
    def ssh(self, folder):
        """Let sshd listen on every host; yield a program that is ssh with a key to them, and none of its user's own."""
        for key in ("host", "user"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
        words = ["ssh", "-F", "none", "-i", str(folder / "user"), *(word for o in options for word in ("-o", o))]
        agent = folder / "agent"
        agent.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        agent.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)  # where it puts itself away
        allowed = (f"AuthorizedKeysFile={folder / 'user.pub'}", "PermitRootLogin=yes", "StrictModes=no", "PidFile=none")
        server = [SSHD, "-D", "-f", "/dev/null", "-h", str(folder / "host"), *(w for o in allowed for w in ("-o", o))]
        servers = [subprocess.Popen(self.on(i, server), stderr=subprocess.DEVNULL) for i in range(len(self.names))]
        try:
            for address in self.addresses:
                until = monotonic() + 20
                while subprocess.run(self.on_first([agent, address, "true"]), capture_output=True).returncode:
                    if monotonic() > until:
                        raise TimeoutError("sshd lets nobody in, as where root's account is locked")
            yield agent
        finally:
            for each in servers:
                each.terminate()
                each.wait()

    def on_first(self, command):
        """Return a command line that runs one on the first host."""
        return self.on(0, command)

    def on(self, number, command):
        """Return a command line that runs one on a host, with a /dev/shm and the /sys of its own network."""
        name = self.names[number]
        groups = "mount --rbind /sys/fs/cgroup /mnt; mount -t sysfs sysfs /sys; mount --rbind /mnt /sys/fs/cgroup"
        inside = f'{groups}; mount -t tmpfs shm /dev/shm; hostname {name}; exec "$@"'
        return ["nsenter", f"--net=/run/netns/{name}", "unshare", "-m", "-u", "sh", "-c", inside, "sh", *command]

    @property
    def environment(self):
        """What the agent has to know; and UCX, which would copy from memory to memory, since the kernel is one."""
        return {"PSFRAME_HOSTS": self.prefix, "UCX_TLS": "tcp,self"}

    def lose(self, number):
        """Cut the power of a host: nobody is told, neither by it nor by the switch."""
        self.link(number, "down")
        self.stop(self.names[number])

    def slow(self, number, rate):
        """Let a host's link carry no more than this from now on, each way."""
        self._limit(self.names[number], rate, "16kb")

    def _limit(self, name, rate, burst):
        bucket = ("tbf", "rate", rate, "burst", burst, "latency", "100ms")
        for inside, device in ((name, "eth0"), (self.switch, name)):
            _run("tc", "-n", inside, "qdisc", "replace", "dev", device, "root", *bucket)

    def link(self, number, how):
        """Cut a host off (``down``), or plug it in again (``up``)."""
        _ip("-n", self.switch, "link", "set", self.names[number], how)

    def processes(self, name):
        """Return the ids of a host's processes."""
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(word) for word in listed.stdout.split()]

    def stop(self, name):
        """Kill the processes of a host."""
        for pid in self.processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _ip(*words):
    _run("ip", *words)


def _run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)
