"""Debian's Slurm over hosts that are network namespaces: slurmctld on the first, a slurmd on each, munge between."""

import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil

from tests import hosts
from tests.helpers.launcher import ROOT

CONFIG = """\
ClusterName=psframe
SlurmctldHost={names[0]}({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=10
"""
DAEMONS = ("munged", "slurmctld", "slurmd")


@cache
def missing():
    """Return why there can be no Slurm here, or None."""
    if reason := hosts.missing():
        return reason
    if lacking := [name for name in DAEMONS if shutil.which(name, path="/usr/sbin:/usr/bin") is None]:
        return f"no {lacking[0]}: apt-get install slurm-wlm munge"
    if (psutil.cpu_count(logical=False) or 1) < 2:
        return "Slurm binds ranks to cores, of which there is one"
    return None


class NotStarted(Exception):
    """This machine does not let a Slurm start."""


class Slurm:
    """A scheduler over ``two`` hosts while its context lasts.

    Its partition ``high`` preempts jobs of ``low``, which is the default.
    """

    def __init__(self, two):
        self.two = two
        self.folder = Path(tempfile.mkdtemp(prefix="psframe-slurm-"))
        self.daemons = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.folder.chmod(0o755)  # munge looks at it
        for name in ("state", *self.two.names):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        hardware = subprocess.run(["/usr/sbin/slurmd", "-C"], capture_output=True, text=True).stdout.split()
        words = " ".join(word for word in hardware if not word.startswith(("NodeName", "UpTime")))
        nodes = [
            f"NodeName={name} NodeAddr={address} {words}"
            for name, address in zip(self.two.names, self.two.addresses, strict=True)
        ]
        config = CONFIG.format(folder=self.folder, names=self.two.names, addresses=self.two.addresses)
        head, partitions = config.split("PartitionName", 1)
        (self.folder / "slurm.conf").write_text("\n".join([head, *nodes, "PartitionName" + partitions]))
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
        files |= {"seed-file": "munge.seed", "log-file": "munge.log"}
        self._daemon("munged", ["--foreground", "--force", *(f"--{k}={self.folder / v}" for k, v in files.items())])
        while not (self.folder / "munge.socket").exists():
            self._wait("munged")
        self._daemon("slurmctld", ["-D"], 0)
        for number, name in enumerate(self.two.names):
            self._daemon("slurmd", ["-D", "-N", name], number)
        while self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(self.two.names)):
            self._wait("slurmd")

    def _daemon(self, name, words, number=None):
        command = [f"/usr/sbin/{name}", *words]
        if number is not None:
            command = self.two.on(number, command)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))
        self.until = time.monotonic() + 60

    def _wait(self, name):
        if time.monotonic() > self.until or self.daemons[-1].poll() is not None:
            raise NotStarted(f"{name} does not start: {(self.folder / f'{name}.log').read_text()[-500:]}")
        time.sleep(0.1)

    @property
    def environment(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        return kept | self.two.environment | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command, **env):
        """Run a client's command on the first host; return what it printed, "" where it failed."""
        env, pipes = self.environment | env, {"capture_output": True, "text": True}
        try:
            told = subprocess.run(self.two.on_first(command), env=env, cwd=ROOT, timeout=60, **pipes)
        except subprocess.TimeoutExpired:
            return ""
        return told.stdout or "done" if not told.returncode else ""

    def submit(self, *words, **env):
        """Submit a job; return its number."""
        number = self.ask("sbatch", "--parsable", *map(str, words), **env).strip()
        assert number.isdecimal(), (self.folder / "slurmctld.log").read_text()[-2000:]
        return number

    def state(self, job):
        """Return a job's state, its restarts, and why it waits; "", 0, "" where Slurm does not answer."""
        fields = dict(word.split("=", 1) for word in self.ask("scontrol", "show", "job", job).split() if "=" in word)
        return fields.get("JobState", ""), int(fields.get("Restarts", 0)), fields.get("Reason", "")

    def wait(self, job, *states, seconds=300):
        """Wait until a job is in one of some states; one that is requeued, to begin in two minutes, begins soon.

        Not at once: Slurm takes a job that begins in the second that it was ended in for one that was revoked.
        """
        until, hastened = time.monotonic() + seconds, False
        while (found := self.state(job))[0] not in states:
            assert time.monotonic() < until, found
            if found[2] == "BeginTime" and not hastened:
                hastened = bool(self.ask("scontrol", "update", f"jobid={job}", "StartTime=now+3seconds"))
            time.sleep(0.2)
        return found

    def __exit__(self, *_):
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
