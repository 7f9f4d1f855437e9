"""Evidence of an incident (:class:`Evidence`): its files, of which nothing is trusted, and what each rank did."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from psframe.config import untrusted
from psframe.doctor.why.counts import number
from psframe.errors import UserError, reason
from psframe.record import flight, incident

FRAME = re.compile(r'^ *File "([^"\n]{1,500})", line (\d{1,9})(?:,)? in (.{1,200})$', re.MULTILINE)
STOPPED = ("T", "t")
MOST_RANKS = 2048  # of a node, that are looked at
LONGEST = 400  # characters of a text that are shown


class Process(msgspec.Struct):
    """As :func:`psframe.cluster.flight.machine.process` describes it."""

    state: str = "?"
    cpu_s: float = 0.0
    waited: float = 0.0
    core: int = -1
    status: dict[str, str] = {}
    call: str = ""


class Sample(msgspec.Struct):
    """Machine and processes at a time, in seconds."""

    at: float
    machine: dict[str, Any] = {}
    processes: dict[str, Process] = {}


class Told(msgspec.Struct):
    """What a rank's ring, and its process, told."""

    rank: int
    pid: int = 0
    step: int = 0
    epoch: int = 0
    n_events: int = 0
    n_events_later: int = 0
    writes_s: float | None = None
    ended_s: float | None = None
    said_goodbye: bool = False
    phases: list[tuple[int, int, int, float]] = []
    events: list[tuple[int, int, int, int, float, float]] = []
    stacks: str = ""
    process_state: str = ""
    in_sight: bool = True  # of the keeper: false of a process of another namespace


class File(msgspec.Struct):
    """An incident's file, of one node."""

    format: int
    reason: str
    rank: int
    message: str
    details: str = ""
    time: float = 0.0
    facts: dict[str, Any] = {}
    samples: list[Sample] = []
    ranks: list[Told] = []


@dataclass(frozen=True)
class Frame:
    """A line of Python that a thread is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shown(Path(self.file).name)}, line {self.line} ({shown(self.function)})"


def shown(text: str, most: int = LONGEST) -> str:
    """Return a text from a file as one line that is safe to print."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in words[:most]) + ("..." if len(words) > most else "")


class Rank:
    """A rank at the time of an incident.

    Attributes
    ----------
    process : Process
        At the end; with a state "gone" where there is none.
    began : dict of str to str
        The status of its process when the job began.
    cpu_share, delayed : float
        Seconds of a core that it used, and in which it could run and had none, a second; over the last seconds.
    """

    def __init__(self, told: Told, node: "File", host: str, layers: Sequence[str], library: Sequence[str]):
        self.told, self.host, self.layers, self.library = told, host, layers, library
        self.number, self.phases = told.rank, [phase for phase in told.phases if phase[0] in flight.NAMES]
        processes = [(sample.at, sample.processes.get(str(told.rank))) for sample in node.samples]
        known = [(at, process) for at, process in processes if process and process.state != "?"]
        self.began = known[0][1].status if known else {}
        unknown = "gone" if told.in_sight or self.has_ended else "?"
        self.process = known[-1][1] if known else Process(state=told.process_state or unknown)
        self.cpu_share = self._rate(known[-2:], "cpu_s")
        self.delayed = self._rate(known[-3:], "waited")

    @staticmethod
    def _rate(known: Sequence[tuple[float, Process]], field: str) -> float:
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return 0.0
        return (getattr(known[-1][1], field) - getattr(known[0][1], field)) / (known[-1][0] - known[0][0])

    def __str__(self) -> str:
        return f"rank {self.number} ({shown(self.host, 60)})"

    @property
    def kinds(self) -> list[int]:
        return [phase[0] for phase in self.phases]

    @property
    def waits(self) -> bool:
        """True if it waits for other ranks."""
        return bool(self.phases) and (self.kinds[-1] in flight.WAITS or self.is_in_exchange)

    @property
    def is_in_exchange(self) -> bool:
        """True if it is in an exchange, where it waits at gates."""
        return self.kinds[-1] == flight.EXCHANGE and not self.user_frame

    @property
    def is_spare(self) -> bool:
        return flight.SPARE in self.kinds

    @property
    def is_stopped(self) -> bool:
        return self.process.state in STOPPED

    @property
    def has_ended(self) -> bool:
        return self.told.ended_s is not None

    @property
    def goes_on(self) -> bool:
        """True if it has noted anything while the incident was written."""
        return self.told.n_events_later > self.told.n_events

    @property
    def usual_s(self) -> float:
        """Longest time that it has taken before for what it does; 0 if it is not known."""
        kind, a, *_ = self.phases[-1]
        is_pass = kind in (flight.FORWARD, flight.BACKWARD)
        return max((e[5] for e in self.told.events if e[0] == kind and (e[2] == a or not is_pass)), default=0.0)

    @property
    def since_s(self) -> float:
        """Seconds since its innermost phase began; of an exchange, since that did."""
        return self.phases[-1][3] if self.phases else 0.0

    def doing(self) -> str:
        """Return what it does, or did last, in words."""
        if not self.phases:
            return "outside of any phase"
        kind, a, b, _ = self.phases[-1]
        where = f" (step {self.told.step}, epoch {self.told.epoch})" if self.told.step else ""
        during = f", during {flight.NAMES[flight.EVALUATE]}" if flight.EVALUATE in self.kinds[:-1] else ""
        return f"{self._named(kind, a, b)}{during}{where}"

    def _named(self, kind: int, a: int, b: int) -> str:
        name = flight.NAMES[kind]
        if kind in (flight.FORWARD, flight.BACKWARD):
            outer = next(phase for phase in self.phases if phase[0] in (flight.FORWARD, flight.BACKWARD))
            return f"{name} through {self.layer(outer[1])}"
        if kind >= flight.MPI:
            return f"{name}{f' of {b:,} bytes' if b else ''}"
        return name

    def layer(self, place: int) -> str:
        """Return a layer of its network in words."""
        return f"layer {shown(str(self.layers[place]), 60) if 0 <= place < len(self.layers) else f'number {place}'}"

    @cached_property
    def frames(self) -> list[Frame]:
        """The lines that its main thread is in, the innermost first; none of a rank that could not answer."""
        parts = re.split(r"^(?:Current thread|Thread|Stack) ", self.told.stacks, flags=re.MULTILINE)
        return [Frame(file, int(line), name) for file, line, name in FRAME.findall(parts[-1])[:200]]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost line of its user's own code: neither psframe's nor a library's."""
        for frame in self.frames:
            if not frame.file.startswith(("<", *self.library)) and "/psframe/train/__main__" not in frame.file:
                return frame
        return None


class Evidence:
    """The files of an incident.

    Parameters
    ----------
    files : sequence of Path
        Of its nodes.

    Attributes
    ----------
    first : File
    ranks : list of Rank
    missing : list of str
        Hosts of the job that have written no file.
    """

    def __init__(self, files: Sequence[Path]):
        self.files = [_file(path) for path in files]
        self.first = min(self.files, key=_order)
        self.ranks = []
        for file in self.files:
            facts = file.facts
            layers, library = _texts(facts.get("layers")), _texts(facts.get("library"))
            host = str(facts.get("host", "?"))
            self.ranks += [Rank(told, file, host, layers, library) for told in file.ranks[:MOST_RANKS]]
        hosts = _texts(self.first.facts.get("hosts"))
        nodes = {int(number(file.facts.get("node"))) for file in self.files}
        self.missing = [host for node, host in enumerate(hosts) if node not in nodes]

    @property
    def alive(self) -> list[Rank]:
        """Ranks that have not ended; a spare, which waits until it is needed, tells nothing, unless it was stopped."""
        return [rank for rank in self.ranks if not rank.has_ended and (rank.is_stopped or not rank.is_spare)]

    @property
    def message(self) -> str:
        return shown(self.first.message)

    def machines(self, n_samples: int = 3) -> list[tuple[str, dict[str, Any], dict[str, Any], float]]:
        """Return for each node: its host, the machine's state some seconds before, and at the end, and the seconds.

        The last two samples are of the incident. One from before may have been taken while a process was ending, so
        that a count which its end has raised needs the sample before that, too: 4 of them.
        """
        found = []
        for file in self.files:
            samples = file.samples[-n_samples:]
            if len(samples) > 1 and (seconds := samples[-1].at - samples[0].at) > 0:
                host = shown(str(file.facts.get("host", "?")), 60)
                found.append((host, samples[0].machine, samples[-1].machine, seconds))
        return found


def _order(file: File) -> float:
    """Return what sorts the files of one incident, the one that tells its cause first.

    Where one node's rank raises, those of the others are killed by the launcher, a moment later.
    """
    return {"death": file.time, "loss": inf}.get(file.reason, 0.0)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _file(path: Path) -> File:
    """Read an incident's file. Raises UserError if it is none."""
    rule = "an incident must be a file that psframe has written"
    try:
        file = msgspec.json.decode(untrusted.content(path, incident.MOST_BYTES), type=File)
    except OSError as error:
        raise UserError(f"{rule}, got {str(path)!r} ({reason(error)}); check the path") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{rule}, got {str(path)!r} ({shown(str(error), 200)}); give another") from None
    if file.format != incident.FORMAT:
        raise UserError(f"{rule} in format {incident.FORMAT}, got format {file.format} in {str(path)!r}; give another")
    return file


class Head(msgspec.Struct):
    """When an incident's file was written, in seconds since 1970, by the clock of its node, and why."""

    time: float = 0.0
    reason: str = ""


def head(path: Path) -> Head:
    """Return the head of a file; by the disk's clock if it is damaged. Raises OSError."""
    try:
        return msgspec.json.decode(untrusted.content(path, incident.MOST_BYTES), type=Head)
    except (OSError, ValueError, RecursionError):
        return Head(path.lstat().st_mtime)
