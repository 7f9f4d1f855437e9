"""What the ranks of a running job do now (:class:`Live`), read from their memory, by another process of their host.

The ranks notice nothing of it: their rings are read, and the files that the run has written.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psframe import compiled
from psframe.cluster.flight import machine
from psframe.cluster.flight.presence import here
from psframe.doctor.why.evidence import number
from psframe.record import flight, metrics, run_dir

NEWEST = 256  # events of each rank that are read at a look: some steps, whatever their number
DRAWN = 400  # epochs of a curve


@dataclass(frozen=True)
class Row:
    """A rank, at a look.

    Attributes
    ----------
    exchanging : float or None
        Share of its last steps in the exchange, with waiting; None if it has taken no step since the last look.
    cores : float
        Cores that it used since the last look.
    faults_per_s : float
        Page faults since then, a second.
    """

    rank: int
    doing: str
    step: int
    epoch: int
    samples_per_s: float
    exchanging: float | None
    cores: float
    resident: int
    faults_per_s: float
    state: str


@dataclass(frozen=True)
class Snapshot:
    """A job, at a look.

    Attributes
    ----------
    epochs : list of dict
        Its last records.
    placed : dict of str to int
        Bytes of all ranks by NUMA node, after the last epoch.
    faults : dict of str to float
        Steps dropped and repaired, and seconds late, since the run began.
    """

    run: str
    rows: list[Row]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    samples_per_s: float = 0.0
    placed: dict[str, int] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)

    @property
    def last(self) -> dict[str, Any]:
        """The last record; {} before the first."""
        return self.epochs[-1] if self.epochs else {}


class Live:
    """A running job, from look to look.

    Parameters
    ----------
    run : Path or None
        Its folder; None for the newest one of this user on this host.

    Raises
    ------
    UserError
        No such job trains on this host.
    """

    def __init__(self, run: Path | None):
        nodes = here(run)
        self.run = nodes[-1].run
        self.nodes = [node for node in nodes if node.run == self.run]
        self.at, self.before = time.monotonic(), dict[int, tuple[int, int, float, int]]()
        self.size, self.records, self.space = -1, list[dict[str, Any]](), flight.space()
        self.batch = _batch(run_dir.config_of(self.run) or {})
        self.look()

    def look(self) -> Snapshot:
        """Return the job as it is now; rates are since the last look."""
        now = time.monotonic()
        seconds, self.at = max(now - self.at, 1e-3), now
        self._read_records()
        last = self.records[-1] if self.records else {}
        reads = [read for node in self.nodes for read in node.read(NEWEST) if read.header["pid"]]
        batch = int(number(last.get("batch_size", self.batch)))
        rows = [self._row(read, seconds, batch) for read in reads]
        workers = sum(any(event[0] == flight.FORWARD for event in read.events) for read in reads)
        per_step = number(last.get("global_batch", batch * workers))  # in the first epoch, of this host's workers
        steps = [row.samples_per_s / max(1, batch) for row in rows if row.samples_per_s]
        return Snapshot(
            self.run.name,
            sorted(rows, key=lambda row: row.rank),
            self.records[-DRAWN:],
            per_step * max(steps, default=0.0),
            _placed(last),
            _faults(self.records),
        )

    @property
    def has_ended(self) -> bool:
        """True if its keepers here have ended, as they do with the last rank."""
        return not any(Path(f"/proc/{node.pid}").exists() for node in self.nodes)

    def _read_records(self) -> None:
        try:
            size = (self.run / "metrics.jsonl").stat().st_size
            if size != self.size:
                self.size, self.records = size, metrics.read(self.run)
        except OSError:  # not yet, or the folder is gone
            self.records = self.records or []

    def _row(self, read: flight.Read, seconds: float, batch: int) -> Row:
        header = read.header
        process: dict[str, Any] = {"state": "?"}
        if header["space"] == self.space:  # its number means nothing here else
            process = machine.process(header["pid"])
        step, cpu_s = header["step"], process.get("cpu_s", 0.0)
        faults = process.get("faults", 0) + process.get("major_faults", 0)
        first = header["events"], step, cpu_s, faults
        events_before, step_before, cpu_before, faults_before = self.before.get(header["rank"], first)
        self.before[header["rank"]] = first
        fresh = read.events[-max(0, header["events"] - events_before) :] if header["events"] > events_before else []
        return Row(
            header["rank"],
            flight.named(read.phases) if header["state"] != flight.ENDED else "ended",
            step,
            header["epoch"],
            (step - step_before) * batch / seconds,
            _exchanging(fresh),
            (cpu_s - cpu_before) / seconds,
            _kilobytes(process.get("status", {}).get("VmRSS", "")) << 10,
            max(0, faults - faults_before) / seconds,
            process.get("state", "gone"),
        )


def _batch(config: Mapping[str, Any]) -> float:
    """Return the samples of a rank's step, as a config tells them; 0 where other keys decide it, too."""
    train, parallel = config.get("train"), config.get("parallel")
    is_cut = isinstance(parallel, dict) and (parallel.get("pipeline"), parallel.get("model")) != (1, 1)
    if not isinstance(train, dict) or is_cut or train.get("reproducible") == "any_workers":
        return 0.0
    return number(train.get("batch_size"))


def _exchanging(events: Sequence[tuple[int, ...]]) -> float | None:
    """Return the share of steps, among events, that their exchanges took."""
    spent = {
        kind: sum(event[5] - event[4] for event in events if event[0] == kind)
        for kind in (flight.STEP, flight.EXCHANGE)
    }
    return spent[flight.EXCHANGE] / spent[flight.STEP] if spent[flight.STEP] else None


def _kilobytes(text: str) -> int:
    kilobytes = text.partition(" ")[0]
    return int(kilobytes) if kilobytes.isdigit() else 0


def _placed(record: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    pages = record.get("pages")
    for counts in pages.values() if isinstance(pages, dict) else ():
        for node, n in counts.items() if isinstance(counts, dict) else ():
            if node.isdigit():
                found[node] = found.get(node, 0) + int(number(n)) * compiled.numa.PAGE_BYTES
    return found


def _faults(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    late = [by_rank for record in records if isinstance(by_rank := record.get("late"), dict)]
    found = {
        name: float(sum(len(each) for record in records if isinstance(each := record.get(name), list)))
        for name in ("skipped", "repaired", "lost")
    }
    found["seconds late"] = sum(number(seconds) for by_rank in late for seconds in by_rank.values())
    return {name: value for name, value in found.items() if value}
