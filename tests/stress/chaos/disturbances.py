"""What is done to a job: before it starts, while it runs, and when it has ended."""

import glob
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from psframe.record.checkpoint import CRASH_POINTS
from tests.stress.chaos.jobs import Job, send

SHM = Path("/dev/shm")
FAKETIME = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
AT_START = 0.25  # of the strikes come before training begins


class Disturbance:
    """Something that befalls a job.

    Attributes
    ----------
    keys : tuple of str
        Of the config, while it is disturbed.
    env : dict of str
    """

    supervisable = False

    def __init__(self, rng: random.Random, n: int, folder: Path):
        self.rng, self.n, self.folder, self.runs = rng, n, folder, folder / "runs"
        self.keys: tuple[str, ...] = ()
        self.env: dict[str, str] = {}

    @staticmethod
    def lacks(private: bool) -> str:
        """Return why it is not possible here, or ''; ``private`` says whether mounts are this process's own."""
        return ""

    def prepare(self) -> None:
        """Before the job is started."""

    def strike(self, job: Job) -> bool:
        """Disturb the job that runs; return whether it was there to be disturbed."""
        raise NotImplementedError

    def undo(self) -> None:
        """When the job has ended."""

    def _moment(self, job: Job) -> None:
        if self.rng.random() < AT_START:
            job.starts(self.n)
            time.sleep(2.5 * self.rng.random())
        else:
            job.trains(self.runs)
            time.sleep(1.5 * self.rng.random())


class Worker(Disturbance):
    supervisable = True

    def strike(self, job: Job) -> bool:
        self._moment(job)
        ranks = job.ranks()[1:]
        return bool(ranks) and send(self.rng.choice(ranks), signal.SIGKILL)


class First(Disturbance):
    supervisable = True

    def strike(self, job: Job) -> bool:
        self._moment(job)
        return bool(ranks := job.ranks()) and send(ranks[0], signal.SIGKILL)


class Launcher(Disturbance):
    supervisable = True

    def strike(self, job: Job) -> bool:
        self._moment(job)
        return send(job.launcher(), signal.SIGKILL)


class Several(Disturbance):
    supervisable = True

    def strike(self, job: Job) -> bool:
        self._moment(job)
        struck = False
        for _ in range(self.rng.randint(2, 4)):
            # seldom rank 0, after which there is nobody to kill
            ranks = job.ranks() if self.rng.random() < 0.2 else job.ranks()[1:]
            struck |= bool(ranks) and send(self.rng.choice(ranks), signal.SIGKILL)
            time.sleep(0.4 * self.rng.random() ** 2)
        return struck


class Crash(Disturbance):
    """Rank 0 is killed at a point of writing a checkpoint."""

    def prepare(self) -> None:
        self.keys = (f"fault.crash_at={self.rng.choice(CRASH_POINTS)}:{self.rng.randint(1, 5)}",)

    def strike(self, job: Job) -> bool:
        job.wait(90)
        return job.process.returncode != 0


class Storm(Disturbance):
    """Ranks are stopped and continued at random, for some seconds."""

    def strike(self, job: Job) -> bool:
        self._moment(job)
        struck, until = False, time.monotonic() + 3 * self.rng.random()
        while (ranks := job.ranks()) and not job.ended and time.monotonic() < until:
            stopped = [pid for pid in ranks if self.rng.random() < 0.5]
            struck |= sum(send(pid, signal.SIGSTOP) for pid in stopped) > 0
            time.sleep(0.3 * self.rng.random() ** 2)
            for pid in stopped:
                send(pid, signal.SIGCONT)
            time.sleep(0.05 * self.rng.random())
        return struck


class Asked(Disturbance):
    """The launcher is sent SIGTERM or SIGINT, as a scheduler or a user does."""

    def strike(self, job: Job) -> bool:
        self._moment(job)
        return send(job.launcher(), self.rng.choice((signal.SIGTERM, signal.SIGINT)))


class Mounted(Disturbance):
    """The runs lie on a file system of their own."""

    @staticmethod
    def lacks(private: bool) -> str:
        return "" if private else "it needs `unshare --mount`, which is not allowed here"

    def prepare(self) -> None:
        self.runs.mkdir()
        mount("-t", "tmpfs", "-o", "size=4m", "none", str(self.runs))


class Full(Mounted):
    def strike(self, job: Job) -> bool:
        self._moment(job)
        fill(self.runs / "filler", self.rng.choice((0, 5000, 50_000)))
        return not job.ended

    def undo(self) -> None:
        (self.runs / "filler").unlink()


class ReadOnly(Mounted):
    def strike(self, job: Job) -> bool:
        self._moment(job)
        # a mount over the mount: what is open for writing forbids to change the one below
        mount("--bind", str(self.runs), str(self.runs))
        mount("-o", "remount,bind,ro", str(self.runs))
        return not job.ended

    def undo(self) -> None:
        subprocess.run(["umount", str(self.runs)], check=True, timeout=60)


class Clock(Disturbance):
    """The time of day jumps, and files get the times of other days; in the end rank 0 may be killed."""

    @staticmethod
    def lacks(private: bool) -> str:
        return "" if _faketime() else "it needs faketime: apt install faketime"

    def prepare(self) -> None:
        self.offset = self.folder / "offset"
        self.offset.write_text("+0\n")
        self.env = {
            "LD_PRELOAD": _faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self.offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def strike(self, job: Job) -> bool:
        job.starts(self.n)
        until = time.monotonic() + 8
        while not job.ended and time.monotonic() < until:
            jump = int(10 ** (1 + 7 * self.rng.random())) * self.rng.choice((-1, 1))
            new = self.folder / "offset.new"
            new.write_text(f"{jump:+d}\n")
            new.rename(self.offset)
            for path in self.runs.rglob("*"):
                try:
                    os.utime(path, (time.time() + jump, time.time() + jump))
                except FileNotFoundError:
                    continue
            time.sleep(0.3 * self.rng.random())
            if self.rng.random() < 0.03:
                return bool(ranks := job.ranks()) and send(ranks[0], signal.SIGKILL)
        return True


class SharedMemoryFull(Disturbance):
    """There is next to no shared memory, from the beginning or at some moment."""

    @staticmethod
    def lacks(private: bool) -> str:
        return Mounted.lacks(private)

    def prepare(self) -> None:
        self.from_start = self.rng.random() < 0.5
        if self.from_start:
            fill(SHM / "filler", int(10 ** self.rng.uniform(3, 7.5)))

    def strike(self, job: Job) -> bool:
        if not self.from_start:
            self._moment(job)
            fill(SHM / "filler", 0)
        return self.from_start or not job.ended

    def undo(self) -> None:
        (SHM / "filler").unlink()


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, timeout=60)


def fill(path: Path, left: int) -> None:
    """Fill a file system until ``left`` bytes of it are left."""
    with path.open("wb") as file:
        found = os.statvfs(path)
        wanted, step = found.f_bavail * found.f_frsize - left, 1 << 20
        while step >= 4096 and wanted > 0:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, min(step, wanted))
                wanted -= min(step, wanted)
            except OSError:
                step //= 4


def _faketime() -> str:
    return next((path for folder in FAKETIME for path in glob.glob(f"{folder}/libfaketimeMT.so.1")), "")


#: by name: how often each is drawn, and what it is
KINDS: dict[str, tuple[int, type[Disturbance]]] = {
    "a worker killed": (6, Worker),
    "rank 0 killed": (4, First),
    "the launcher killed": (4, Launcher),
    "several killed in a row": (4, Several),
    "killed while a checkpoint is written": (4, Crash),
    "ranks stopped and continued": (3, Storm),
    "SIGTERM or SIGINT to the launcher": (3, Asked),
    "disk full": (2, Full),
    "folder read-only": (2, ReadOnly),
    "clock and file times jump": (2, Clock),
    "shared memory full": (2, SharedMemoryFull),
}
