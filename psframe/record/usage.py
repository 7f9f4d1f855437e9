"""Sampling of CPU, memory and network usage (:class:`Usage`) for usage.jsonl, a line per sample and rank.

A background thread of each rank samples once per second, by psutil; rank 0 gets the samples with the epoch's report.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from psframe.record import metrics

FILE = "usage.jsonl"
PERIOD_S = 1.0
NETWORKS = "/sys/class/net"
KEYS = ("cpu_percent", "rss_bytes", "threads", "sent_bytes_per_s", "received_bytes_per_s")

#: time on the rank's clock in seconds, and a number or None for each of KEYS
Sample = tuple[float, tuple[Any, ...]]


class Usage:
    """Context manager that samples this process, and the network of its node.

    Parameters
    ----------
    before_s : float
        Seconds of the run sampled by earlier processes, which this one continues.
    period_s : float
        Seconds between samples.

    Attributes
    ----------
    zero : float
        The ``time.perf_counter`` of the run's start, as if it had never been interrupted; 0 before it.
    """

    def __init__(self, before_s: float = 0.0, period_s: float = PERIOD_S):
        import psutil  # slow to import, and few runs need it

        self.before_s, self.period_s, self.psutil = before_s, period_s, psutil
        self.process = _or_none(psutil.Process)
        self.kept: deque[Sample] = deque()  # one thread appends, another pops
        self.zero = 0.0
        self.stopped = Event()

    def __enter__(self) -> "Usage":
        """Sample from now on; a context may be left and entered again."""
        self.began = perf_counter()
        if not self.zero:
            self.zero = self.began - self.before_s
        self.thread = Thread(target=self._run, name="usage", daemon=True)
        self.last_at, self.moved = self.began, _or_none(self._moved)
        _or_none(lambda: self.process.cpu_percent())  # the first call sets the reference
        self.thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.stopped = Event()

    def _run(self) -> None:
        tick = 1
        while not self.stopped.wait(max(0.0, self.began + tick * self.period_s - perf_counter())):
            self.sample()
            tick = max(tick, int((perf_counter() - self.began) / self.period_s)) + 1  # skip missed samples

    def sample(self) -> None:
        """Record a sample now."""
        at, moved, process = perf_counter(), _or_none(self._moved), self.process
        rates: Sequence[float | None] = (None, None)
        if moved and self.moved:
            # a vanished interface takes its counters along: clip at 0
            rates = [max(0, now - before) / (at - self.last_at) for now, before in zip(moved, self.moved, strict=True)]
        self.last_at, self.moved = at, moved
        probes = (lambda: process.cpu_percent(), lambda: process.memory_info().rss, lambda: process.num_threads())
        self.kept.append((at, (*map(_or_none, probes), *rates)))

    def _moved(self) -> tuple[int, int]:
        """Return the node's bytes sent and received; a bond's or a bridge's are those of its devices once more."""
        counters = {name: each for name, each in self.psutil.net_io_counters(pernic=True).items() if name != "lo"}
        devices = [each for name, each in counters.items() if os.path.exists(f"{NETWORKS}/{name}/device")]
        counted = devices or [*counters.values()]  # a container has none
        return sum(each.bytes_sent for each in counted), sum(each.bytes_recv for each in counted)

    def take(self, offset_s: float = 0.0) -> list[Sample]:
        """Return and clear the samples since the last call, on a clock ahead by ``offset_s``."""
        samples = [self.kept.popleft() for _ in range(len(self.kept))]
        return [(at + offset_s, values) for at, values in samples]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # psutil may fail in any way on a denied or unusual /proc: training goes on
        return None


def append(run: Path, epoch: int, ranks: Sequence[Sequence[Sample]], zero: float) -> None:
    """Append the ranks' samples of ``epoch``, on rank 0's clock; the run began at ``zero``. Rank 0 only."""
    lines: list[dict[str, Any]] = [
        {"epoch": epoch, "rank": rank, "t_s": round(at - zero, 3), **dict(zip(KEYS, values, strict=True))}
        for rank, samples in enumerate(ranks)
        for at, values in samples
    ]
    metrics.append(run, FILE, sorted(lines, key=itemgetter("t_s")))


def sampled_s(run: Path) -> float:
    """Return the ``t_s`` of a run's last sample, 0 without any."""
    return max((record["t_s"] for record in metrics.read(run, FILE)), default=0.0)
