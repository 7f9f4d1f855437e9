"""Timeline of every rank (:class:`Trace`): spans in Chrome's trace format, for Perfetto and chrome://tracing.

The format is Google's "Trace Event Format": a JSON object with a list of events. A process is a rank; its thread 0 is
the rank's own work, threads 1 and up are the exchanges of single buckets, and :data:`MOVES` is that of pages between
tiers of memory.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.config import untrusted
from psframe.record.clock import CLOCK
from psframe.record.folder import Folder

FILE = "trace.json"
MAX_HEAD = 1 << 16  # most bytes of the file's first line
END = b"\n]}\n"
MOVES = 1 << 16  #: thread that moves pages

#: name, thread, begin and end in seconds on the rank's clock
Span = tuple[str, int, float, float]
#: time in seconds, and values by name
Count = tuple[float, dict[str, int]]


class Trace:
    """Spans and counts of one rank in the first turns of each epoch.

    Parameters
    ----------
    turns : int
        Number of turns per epoch; 0: no trace.

    Attributes
    ----------
    on : bool
        True while spans are kept; callers check it before they measure.
    """

    def __init__(self, turns: int):
        self.turns, self.left, self.on = turns, 0, False
        self.spans: list[Span] = []
        self.counts: list[Count] = []

    def begin(self) -> None:
        """Begin an epoch."""
        self.left, self.on = self.turns, self.turns > 0

    def end(self) -> None:
        """End an epoch, even one of fewer turns."""
        self.on = False

    def add(self, name: str, began: float, ended: float | None = None, thread: int = 0) -> None:
        """Keep a span, in seconds of ``CLOCK``; it ends now by default."""
        if self.turns:
            self.spans.append((name, thread, began, CLOCK.now() if ended is None else ended))

    def passes(self, index: int, layer: Any) -> Callable[[str, float], None]:
        """Return a function that keeps a span of each pass through the network's layer ``index``."""
        names = {direction: f"{index} {layer.kind} {direction}" for direction in ("forward", "backward")}

        def keep(direction: str, began: float) -> None:
            if self.on:
                self.add(names[direction], began)

        return keep

    def turn(self, loading: float, computing: float, exchanging: float, counts: Mapping[str, int]) -> None:
        """End a turn, given the start times of data, gradients and exchange, and the counts so far."""
        ended = CLOCK.now()
        self.spans += [("data", 0, loading, computing), ("gradients", 0, computing, exchanging)]
        self.spans.append(("exchange", 0, exchanging, ended))
        self.counts.append((ended, dict(counts)))
        self.left -= 1
        self.on = self.left > 0

    def take(self, offset_s: float = 0.0) -> tuple[list[Span], list[Count]]:
        """Return the spans and counts kept since the last call, on a clock that is ahead by ``offset_s``."""
        spans = [(name, thread, began + offset_s, ended + offset_s) for name, thread, began, ended in self.spans]
        counts = [(at + offset_s, numbers) for at, numbers in self.counts]
        self.spans.clear()
        self.counts.clear()
        return spans, counts


#: of a run without trace
UNTRACED = Trace(0)


def append(run: Path, ranks: Sequence[tuple[Sequence[Span], Sequence[Count]]]) -> None:
    """Append the ranks' spans and counts, on rank 0's clock, to the run's file, which is valid JSON at any time.

    Rank 0 calls. A continued run appends to its earlier trace.
    """
    # spans use a clock that restarts with the machine, the file one that begins with the run; an interrupt between the
    # two readings makes the difference too small, hence the maximum
    now = max(time.time() - CLOCK.now() for _ in range(5))
    first = min((span[2] for spans, _ in ranks for span in spans), default=CLOCK.now())
    zero, end = _begun(run)
    if zero is None:
        zero = now + first
        head = {"displayTimeUnit": "ms", "otherData": {"began_s": zero}}
        text = f'{json.dumps(head)[:-1]}, "traceEvents": [\n{_named("process_name", 0, 0, "rank 0")}'
        with Folder(run) as folder, folder.open(FILE, "wb") as file:
            file.write(text.encode() + END)
        end = len(text)
    with Folder(run) as folder, folder.open(FILE, "r+b") as file:
        file.seek(end)
        file.write("".join(f"\n,{event}" for event in _events(ranks, min(zero - now, first))).encode() + END)
        file.truncate()


def _begun(run: Path) -> tuple[float | None, int]:
    """Return the file's zero (``time.time``, seconds) and the end of its last full event; None, 0 if invalid."""
    try:
        with Folder(run) as folder, folder.open(FILE) as file:
            zero = float(untrusted.of_json(file.readline(MAX_HEAD) + b"]}")["otherData"]["began_s"])
            size = file.seek(0, 2)
            file.seek(max(0, size - len(END)))
            if file.read() == END:
                return zero, size - len(END)
            file.seek(0)
            end = file.read().rfind(b"\n,")  # the last event may have been cut short
            return (zero, end) if end > 0 else (None, 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None, 0


def _events(ranks: Sequence[tuple[Sequence[Span], Sequence[Count]]], zero: float) -> Iterable[str]:
    for rank, (spans, counts) in enumerate(ranks):
        yield _named("process_name", rank, 0, f"rank {rank}")
        for thread in sorted({span[1] for span in spans}):
            known = {0: "rank", MOVES: "moves"}
            yield _named("thread_name", rank, thread, known.get(thread, f"bucket {thread - 1}"))
        # viewers require that an enclosing span precedes those that begin with it
        for name, thread, began, ended in sorted(spans, key=lambda span: (span[1], span[2], -span[3])):
            # rounds both ends, not the length, or a span might overlap the next one
            begins, ends = round((began - zero) * 1e9), round((ended - zero) * 1e9)
            if begins < ends:  # a dedicated server has no data and no gradients
                where = f'"pid":{rank},"tid":{thread},"ts":{_microseconds(begins)},"dur":{_microseconds(ends - begins)}'
                yield f'{{"ph":"X","name":"{name}",{where}}}'
        for at, numbers in counts:
            for name, number in numbers.items():
                what = f'"name":"{name}","pid":{rank},"args":{{"{name}":{number}}}'
                yield f'{{"ph":"C",{what},"ts":{(at - zero) * 1e6:.3f}}}'


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _named(what: str, rank: int, thread: int, name: str) -> str:
    event: dict[str, Any] = {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}
    return json.dumps(event)
