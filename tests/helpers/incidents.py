"""Incidents of ranks that are made up, with the content that a keeper writes."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from psframe.record import flight, incident

LIBRARY = ["/venv/psframe/", "/lib/python3/"]
LAYERS = ["0 Conv2d", "1 Mine", "2 Dense"]
AT = (90.0, 100.0, 100.5)  # seconds of the samples: some time before, at the incident, and when it is written
IN_STEP = ((flight.EPOCH, 2, 0, 9.0), (flight.STEP, 15, 0, 3.3))
LATE = "psframe: rank {} did not come to an exchange for 3 s (sync.deadline_s), and the others cannot go on without it"
#: of the machine, at the first and at the last sample
MACHINE = {
    "cores": 64,
    "load": [1.0, 1.0, 1.0],
    "pressure": {of: {"some": 5e9, "some_10s": 1.0, "full": 4e9, "full_10s": 1.0} for of in ("cpu", "memory", "io")},
    "memory": {"MemTotal": 64 << 30, "MemAvailable": 40 << 30, "SwapTotal": 0, "SwapFree": 0, "Dirty": 0},
    "swapped": {"pswpin": 7, "pswpout": 7},
    "cgroup": {"groups": {"job": {"throttled": 4, "throttled_us": 4_000_000, "killed": 2}, "above": {"killed": 7}}},
    "disk": {"free": 9 << 30, "size": 90 << 30, "files": 1000},
}


def call_of(name: str) -> int:
    """Return the kind of a phase in a call of MPI."""
    return flight.MPI + flight.CALLS.index(name)


def stack(*frames: tuple[str, int, str]) -> str:
    """Return a stack as faulthandler writes it, of a thread of psframe's own and of the main one, innermost first."""
    lines = ["Thread 0x0000000000000001 (most recent call first):"]
    lines += [
        '  File "/other/thread.py", line 1 in run',
        "",
        "Current thread 0x0000000000000002 (most recent call first):",
    ]
    lines += [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "\n".join([*lines, '  File "/venv/psframe/train/epoch.py", line 129 in _turn', ""])


MINE = stack(
    ("/home/me/mine.py", 33, "spin"), ("/home/me/mine.py", 51, "forward"), ("/venv/psframe/nn/steps.py", 7, "f")
)


def steps(n: int, seconds: float, layers: Sequence[float] = (), first: int = 1) -> list[list[Any]]:
    """Return the events of steps that computed for ``seconds`` before their exchange, in layers for ``layers``."""
    events = []
    for number in range(n):
        ago = 3.0 + 3 * seconds * (n - number)
        passes = [[flight.FORWARD, 2, layer, 0, ago, took] for layer, took in enumerate(layers or (seconds / 2,))]
        exchange = [flight.EXCHANGE, 2, first + number, 0, ago - seconds, seconds / 4]
        events += [*passes, exchange, [flight.STEP, 1, first + number, 0, ago, 1.3 * seconds]]
    return events


def rank(number: int, *phases: Sequence[Any], share: float = 0.0, delayed: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a rank: what is told of it, and its process at each sample.

    ``share`` of a core is what it used, and ``delayed`` the share of the time in which it had none; ``more`` is of its
    process (state, core, call, cpus) or of what is told.
    """
    process = {"state": "S", "core": number, "call": "", "major_faults": 0}
    process |= {name: more.pop(name) for name in tuple(more) if name in process}
    process["status"] = {"VmRSS": "9 kB", "Cpus_allowed_list": more.pop("cpus", "0-63")}
    at = [{**process, "cpu_s": 5 + share * (t - AT[0]), "waited": 1 + delayed * (t - AT[0])} for t in AT]
    n_events = more.pop("n_events", 400)
    told = {"rank": number, "pid": 1000 + number, "state": flight.TRAINS, "step": 15, "epoch": 2}
    told |= {"n_events": n_events, "n_events_later": n_events, "ended_s": None, "said_goodbye": False}
    told |= {"answered": True, "signals": [], "phases": [list(phase) for phase in phases], "events": [], "stacks": ""}
    return {"told": told | more, "at": [{}, {}, {}] if told["ended_s"] or more.get("ended_s") else at}


def at_gate(number: int, since_s: float = 3.0, **more: Any) -> dict[str, Any]:
    """Return a rank that waits for others of its node."""
    return rank(number, *IN_STEP, (flight.EXCHANGE, 15, 0, since_s + 0.1), (flight.GATE, 0, 0, since_s), **more)


def in_exchange(number: int, since_s: float = 3.0, **more: Any) -> dict[str, Any]:
    """Return a rank that is in an exchange, and has noted no wait within."""
    return rank(number, *IN_STEP, (flight.EXCHANGE, 15, 0, since_s), **more)


def in_call(
    number: int, name: str = "Allreduce", n_bytes: int = 4096, since_s: float = 3.0, **more: Any
) -> dict[str, Any]:
    """Return a rank that is in a call of MPI."""
    return rank(number, *IN_STEP, (flight.EXCHANGE, 15, 0, since_s), (call_of(name), -1, n_bytes, since_s), **more)


def for_nodes(number: int, since_s: float = 3.0, **more: Any) -> dict[str, Any]:
    """Return a rank that waits for other nodes."""
    return rank(number, *IN_STEP, (flight.EXCHANGE, 15, 0, since_s), (flight.NODES, 0, 0, since_s), **more)


def in_layer(
    number: int, layer: int = 1, since_s: float = 3.3, kind: int = flight.FORWARD, **more: Any
) -> dict[str, Any]:
    """Return a rank that computes in a layer."""
    return rank(number, *IN_STEP, (kind, layer, 0, since_s), **{"state": "R", "share": 1.0, **more})


def locked(number: int, since_s: float = 3.3, **more: Any) -> dict[str, Any]:
    """Return a rank that waits in a layer for a lock."""
    return in_layer(number, since_s=since_s, **{"state": "S", "share": 0.0, "call": "futex_do_wait", **more})


def stopped(number: int, **more: Any) -> dict[str, Any]:
    """Return a rank that a signal has stopped in a layer."""
    return in_layer(number, **{"state": "T", "share": 0.0, "answered": False, **more})


def serving(number: int, since_s: float = 3.0, **more: Any) -> dict[str, Any]:
    """Return a server that waits for its workers."""
    events = [[flight.GATE, 0, 0, 0, 3.0 + 0.1 * n, 0.05] for n in range(40, 0, -1)]
    return rank(number, (flight.GATE, 0, 0, since_s), **{"events": events, **more})


def ended(number: int, *phases: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return a rank that has ended, without a word, in a layer."""
    given = {"ended_s": 0.3, "answered": False, **more}
    return rank(number, *(phases or (*IN_STEP, (flight.BACKWARD, 2, 0, 0.5))), **given)


def changed(machine: dict[str, Any], **by_path: Any) -> dict[str, Any]:
    """Return a machine's state with some values changed, e.g. ``cgroup__killed=3``."""
    machine = deepcopy(machine)
    for path, value in by_path.items():
        at, (*above, last) = machine, path.split("__")
        for key in above:
            at = at[key]
        at[last] = value
    return machine


def node(ranks: Sequence[dict[str, Any]], reason: str = "deadline", of: int = 0, message: str = "", **more: Any) -> Any:
    """Return the content of a node's file: ``of`` is the rank that asked for it.

    ``more``: details, before and after (the machine), number (of the node), hosts, and further facts.
    """
    hosts, number = more.pop("hosts", ["a"]), more.pop("number", 0)
    before, details = more.pop("before", MACHINE), more.pop("details", "")
    machines = [before, before, more.pop("after", before)]
    samples = [
        {"at": at, "machine": machine, "processes": {str(each["told"]["rank"]): each["at"][i] for each in ranks}}
        for i, (at, machine) in enumerate(zip(AT, machines, strict=True))
    ]
    facts = {"node": number, "host": hosts[number], "hosts": hosts, "library": LIBRARY, "layers": LAYERS, **more}
    head = {"reason": reason, "rank": of, "message": message or LATE.format(of), "details": details, "time": 1.8e9}
    return {**head, "facts": facts, "samples": samples, "ranks": [each["told"] for each in ranks]}


def asked(ranks: Sequence[dict[str, Any]], **more: Any) -> Any:
    """Return the content of a node's file that a person has asked for."""
    return node(ranks, "asked", 0, "a signal, SIGUSR2, has asked for it", **more)


def write(folder: Path, *nodes: Any) -> list[Path]:
    """Write an incident of a run, a file for each of ``nodes``; return the paths."""
    return [Path(incident.write([folder], content)) for content in nodes]
