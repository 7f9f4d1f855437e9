"""What every rank uses of its CPUs, memory and network over time: usage.jsonl, a line a sample and rank.

A rank samples itself once a second on a thread of its own, by psutil; what it has sampled rides to rank 0 with the
report of its epoch.
"""

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
KEYS = ("cpu_percent", "rss_bytes", "threads", "sent_bytes_per_s", "received_bytes_per_s")

#: when, on the rank's clock in seconds, and a number or None for each of KEYS
Sample = tuple[float, tuple[Any, ...]]


class Usage:
    """Samples this process, and the network of its node, while it is entered.

    Parameters
    ----------
    before_s : float
        Seconds that the run has been sampled for by the processes that it continues.
    period_s : float
        From sample to sample.

    Attributes
    ----------
    zero : float
        The ``time.perf_counter`` at which the run began; had it not been interrupted.
    """

    def __init__(self, before_s: float = 0.0, period_s: float = PERIOD_S):
        import psutil  # takes time to import, and few runs want it

        self.before_s, self.period_s, self.psutil = before_s, period_s, psutil
        self.process = _or_none(psutil.Process)
        self.kept: deque[Sample] = deque()  # one thread appends, another one takes
        self.stopped, self.thread = Event(), Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> "Usage":
        self.began = perf_counter()
        self.zero = self.began - self.before_s
        self.last_at, self.moved = self.began, _or_none(self._moved)
        _or_none(lambda: self.process.cpu_percent())  # counts from here
        self.thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        tick = 1
        while not self.stopped.wait(max(0.0, self.began + tick * self.period_s - perf_counter())):
            self.sample()
            tick = max(tick, int((perf_counter() - self.began) / self.period_s)) + 1  # a missed one is not made up for

    def sample(self) -> None:
        """Keep a sample of now."""
        at, moved, process = perf_counter(), _or_none(self._moved), self.process
        rates: Sequence[float | None] = (None, None)
        if moved and self.moved:
            # an interface that has gone takes what it has counted along
            rates = [max(0, now - then) / (at - self.last_at) for now, then in zip(moved, self.moved, strict=True)]
        self.last_at, self.moved = at, moved
        own = (lambda: process.cpu_percent(), lambda: process.memory_info().rss, lambda: process.num_threads())
        self.kept.append((at, (*map(_or_none, own), *rates)))

    def _moved(self) -> tuple[int, int]:
        """Return the bytes that the node has sent and received on all interfaces but loopback."""
        counters = [of for name, of in self.psutil.net_io_counters(pernic=True).items() if name != "lo"]
        return sum(of.bytes_sent for of in counters), sum(of.bytes_recv for of in counters)

    def take(self, offset_s: float = 0.0) -> list[Sample]:
        """Return the samples since the last call, on a clock that is ahead by ``offset_s``."""
        taken = [self.kept.popleft() for _ in range(len(self.kept))]
        return [(at + offset_s, values) for at, values in taken]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # whatever becomes of psutil where /proc is denied or holds something else: training goes on
        return None


def append(run: Path, epoch: int, ranks: Sequence[Sequence[Sample]], zero: float) -> None:
    """Write the ranks' samples, on rank 0's clock, as those of ``epoch``; the run began at ``zero``. Rank 0 calls."""
    lines: list[dict[str, Any]] = [
        {"epoch": epoch, "rank": rank, "t_s": round(at - zero, 3), **dict(zip(KEYS, values, strict=True))}
        for rank, samples in enumerate(ranks)
        for at, values in samples
    ]
    metrics.append(run, FILE, sorted(lines, key=itemgetter("t_s")))


def sampled_s(run: Path) -> float:
    """Return the ``t_s`` of a run's last sample; 0 where it has none."""
    return max((record["t_s"] for record in metrics.read(run, FILE)), default=0.0)
