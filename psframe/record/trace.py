"""What every rank did when: spans in Chrome's trace format, which Perfetto and chrome://tracing draw.

The format is Google's "Trace Event Format": a JSON object with a list of events; a process is a rank, a thread of it
what it does itself (0) or the exchange of a bucket (1 and on).
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from psframe.config import untrusted
from psframe.record.folder import Folder

FILE = "trace.json"
MOST_HEAD = 1 << 16  # bytes of its first line
END = b"\n]}\n"

#: name, thread, begin and end on the rank's clock, in seconds
Span = tuple[str, int, float, float]
#: when, and numbers by name
Count = tuple[float, dict[str, int]]


class Trace:
    """What one rank does in the first turns of an epoch.

    Parameters
    ----------
    turns : int
        How many of them; of none nothing is kept.

    Attributes
    ----------
    on : bool
        Whether what happens now is kept; who measures spans looks at it first.
    """

    def __init__(self, turns: int):
        self.turns, self.left, self.on = turns, 0, False
        self.spans: list[Span] = []
        self.counts: list[Count] = []

    def begin(self) -> None:
        """Begin an epoch."""
        self.left, self.on = self.turns, self.turns > 0

    def end(self) -> None:
        """End an epoch, which may have had fewer turns."""
        self.on = False

    def add(self, name: str, began: float, ended: float | None = None, thread: int = 0) -> None:
        """Keep a span of ``time.perf_counter``, which ends now if nothing else is said."""
        if self.turns:
            self.spans.append((name, thread, began, perf_counter() if ended is None else ended))

    def passes(self, index: int, layer: Any) -> Callable[[str, float], None]:
        """Return what keeps a span of each pass of the network's layer of that number."""
        names = {direction: f"{index} {layer.kind} {direction}" for direction in ("forward", "backward")}

        def keep(direction: str, began: float) -> None:
            if self.on:
                self.add(names[direction], began)

        return keep

    def turn(self, loading: float, computing: float, exchanging: float, counts: Mapping[str, int]) -> None:
        """End a turn: its data, gradients, and exchange began then, and so much was counted until now."""
        ended = perf_counter()
        self.spans += [("data", 0, loading, computing), ("gradients", 0, computing, exchanging)]
        self.spans.append(("exchange", 0, exchanging, ended))
        self.counts.append((ended, dict(counts)))
        self.left -= 1
        self.on = self.left > 0

    def take(self, offset_s: float = 0.0) -> tuple[list[Span], list[Count]]:
        """Return all that was kept since the last call, on a clock that is ahead by ``offset_s``."""
        spans = [(name, thread, began + offset_s, ended + offset_s) for name, thread, began, ended in self.spans]
        counts = [(at + offset_s, numbers) for at, numbers in self.counts]
        self.spans.clear()
        self.counts.clear()
        return spans, counts


#: of a run that is not traced
UNTRACED = Trace(0)


def append(run: Path, ranks: Sequence[tuple[Sequence[Span], Sequence[Count]]]) -> None:
    """Write what the ranks kept, on rank 0's clock, behind what the run's file holds; the file is whole at any time.

    Rank 0 calls. What a continued run traces stands behind what it traced before it was cut short.
    """
    # the clock of spans begins anew when a machine does, the file's with the run; who is interrupted between reading
    # the one and the other finds too little
    now = max(time.time() - perf_counter() for _ in range(5))
    first = min((span[2] for spans, _ in ranks for span in spans), default=perf_counter())
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
    """Return the time of day at which the file begins, and where its last whole event ends; None where it has none."""
    try:
        with Folder(run) as folder, folder.open(FILE) as file:
            zero = float(untrusted.of_json(file.readline(MOST_HEAD) + b"]}")["otherData"]["began_s"])
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
            yield _named("thread_name", rank, thread, f"bucket {thread - 1}" if thread else "rank")
        # what begins with a span that it is part of stands behind it, as viewers want it
        for name, thread, began, ended in sorted(spans, key=lambda span: (span[1], span[2], -span[3])):
            # both ends are rounded, and not the length, or a span might end in the next one
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
