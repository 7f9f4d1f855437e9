"""Other load on this machine during a measurement (:class:`Load`): it makes times longer, and is no part of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import sched_getaffinity, sysconf
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

MOST = 0.1  # share of a rank's time or of the cores'; an idle machine's own load is well below
STAT = Path("/proc/stat")
#: columns of a CPU's line in /proc/stat, in ticks
BUSY, STOLEN = ("user", "nice", "system", "irq", "softirq"), ("steal",)
COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class Load:
    """Time lost by ranks during a measurement.

    Attributes
    ----------
    taken : float
        Share of its steps' time in which a rank could have computed but had no core; the worst rank's.
    others : float
        Share of the cores' time in which processes other than our ranks ran on them.
    stolen : float
        Share of the cores' time that the hypervisor gave to other machines.
    """

    taken: float = 0.0
    others: float = 0.0
    stolen: float = 0.0

    @property
    def seen(self) -> bool:
        """True if it is more than an idle machine shows."""
        return max(self.taken, self.others, self.stolen) > MOST

    @property
    def told(self) -> str:
        """The load in words; '' if none was seen."""
        parts = {
            "a rank waited for a core": self.taken,
            "other processes ran on the cores": self.others,
            "the hypervisor took the cores": self.stolen,
        }
        return ", ".join(f"{what} for {share:.0%} of the time" for what, share in parts.items() if share > MOST)

    @property
    def plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        return {"taken": self.taken, "others": self.others, "stolen": self.stolen, "seen": self.seen}

    def __or__(self, other: "Load") -> "Load":
        """Return the larger share of each kind: the worst of several measurements counts."""
        return Load(max(self.taken, other.taken), max(self.others, other.others), max(self.stolen, other.stolen))

    def sharing(self, turns: float) -> "Load":
        """Return it for ranks of which ``turns`` share a core: the turns of the others are no load."""
        return Load(max(0.0, 1 - turns * (1 - self.taken)), self.others, self.stolen)


NONE = Load()


@dataclass(frozen=True)
class Reading:
    """Clocks at one time, as one process reads them.

    Attributes
    ----------
    at_s, own_s : float
        Wall-clock seconds, and CPU seconds of this process.
    cpus : frozenset of int
        CPUs on which it may run.
    ticks : dict of int to tuple of int
        By CPU: busy, and stolen. Empty if the kernel does not report them.
    """

    at_s: float
    own_s: float
    cpus: frozenset[int]
    ticks: Mapping[int, tuple[int, int]]


def reading() -> Reading:
    """Return this process's reading of the clocks."""
    try:
        text = STAT.read_text("ascii")
    except (OSError, ValueError):
        text = ""
    return Reading(perf_counter(), process_time(), frozenset(sched_getaffinity(0)), parsed(text))


def parsed(text: str) -> dict[int, tuple[int, int]]:
    """Return busy and stolen ticks by CPU, from the text of ``/proc/stat``, without CPUs of incomplete lines."""
    by_cpu = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        number = name.removeprefix("cpu")
        if number != name and number.isdigit() and len(words) >= len(COLUMNS) and all(map(str.isdigit, words)):
            ticks = dict(zip(COLUMNS, map(int, words), strict=False))
            by_cpu[int(number)] = sum(ticks[key] for key in BUSY), sum(ticks[key] for key in STOLEN)
    return by_cpu


def between(
    before: Sequence[Reading], after: Sequence[Reading], taken: float = 0.0, hertz: float | None = None
) -> Load:
    """Return the load between two readings of each rank of a machine.

    Parameters
    ----------
    before, after : sequence of Reading
        In the order of the ranks.
    taken : float
        As in :class:`Load`.
    hertz : float, optional
        Ticks per second; those of this kernel by default.
    """
    hertz = hertz or sysconf("SC_CLK_TCK")
    cpus = frozenset().union(*(clocks.cpus for clocks in before)) & before[0].ticks.keys() & after[0].ticks.keys()
    seconds = after[0].at_s - before[0].at_s
    if not cpus or seconds <= 0:
        return Load(taken)
    busy, stolen = (sum(after[0].ticks[c][i] - before[0].ticks[c][i] for c in cpus) / hertz for i in (0, 1))
    own_s = sum(b.own_s - a.own_s for a, b in zip(before, after, strict=True))
    total_s = seconds * len(cpus)
    return Load(taken, max(0.0, (busy - own_s) / total_s), max(0.0, stolen / total_s))
