"""Causes of an incident (:func:`causes`): each rule looks for one, and tells what it is sure of."""

import re
from collections.abc import Iterator

from psframe.doctor.why import calls, links, slowness
from psframe.doctor.why.calls import other_sizes, raised
from psframe.doctor.why.cause import Cause
from psframe.doctor.why.counts import most_in_a_group, nested
from psframe.doctor.why.evidence import Evidence, Rank, shown
from psframe.record import flight

LEAST_S = 0.5  # in which a rank has noted nothing, below which it is not accused
UNUSUAL_S = 30.0  # the same of what a rank has not done before, where somebody has asked
MOST = 8  # ranks that one rule accuses
DISK = (flight.STORE, flight.CHECKPOINT, flight.RECORD)


def causes(evidence: Evidence) -> list[Cause]:
    """Return the causes of an incident, the most likely first."""
    found = [cause for rule in (*RULES, *calls.RULES, *links.RULES, *slowness.RULES) for cause in rule(evidence)]
    return sorted(found, key=lambda cause: -cause.weight)


def stopped(evidence: Evidence) -> Iterator[Cause]:
    """A signal has stopped processes: they hold the others up."""
    found = [rank for rank in evidence.alive if rank.is_stopped]
    for host in dict.fromkeys(rank.host for rank in found):
        here = [rank for rank in found if rank.host == host]
        whole = len(here) == sum(rank.host == host for rank in evidence.ranks)
        who = f"all ranks of host {shown(host, 60)}" if whole and len(here) > 1 else named(here)
        yield Cause(
            100,
            f"{capital(who)} {'were' if len(here) > 1 else 'was'} stopped by a signal, in {here[0].doing()}.",
            [f"{each} is in state {each.process.state} (stopped)" for each in here[:4]] + waiting(evidence, here),
            f"`kill -CONT {' '.join(str(rank.told.pid) for rank in here[:8])}` lets it go on, if the job still runs; a "
            "debugger, a shell's Ctrl-Z or a scheduler that suspends jobs stops processes so.",
        )


def died(evidence: Evidence) -> Iterator[Cause]:
    """A rank has ended without a word."""
    if evidence.first.reason not in ("death", "loss"):
        return
    gone = _gone(evidence)
    first = [rank for rank in gone if rank.number == evidence.first.rank] or gone[:1]
    for rank in first:
        host, before, after, _ = next(
            (machine for machine in evidence.machines(4) if machine[0] == shown(rank.host, 60)), ("", {}, {}, 0.0)
        )
        killed = most_in_a_group(before, after, "killed")
        left, size = nested(after, "memory", "MemAvailable"), nested(after, "memory", "MemTotal")
        is_short = killed > 0 or (size and left < 0.03 * size)
        why = ": the kernel killed it, as its memory was used up" if killed > 0 else ""
        advice = (
            "Give the job more memory, or fewer ranks: `--dry-run` shows what a config needs."
            if is_short
            else "Its end was not its own: look for SIGKILL (a person, a scheduler, the kernel's log) or SIGSEGV and "
            "SIGBUS (a compiled extension of yours); mpirun's own message names the signal."
        )
        evidence_lines = [f"the last that it noted was {rank.doing()}, {duration(rank.since_s)} before"]
        beside = ""
        if rank.told.writes_s is not None:  # by a thread, whatever else the rank does
            beside = ", while it wrote a checkpoint"
            evidence_lines.append(
                f"it wrote the checkpoint for {duration(rank.told.writes_s)}; the one before, if there is one, is whole"
            )
        evidence_lines += [f"memory left on {host}: {left / 2**20:,.0f} MiB"] if is_short else []
        yield Cause(95, f"{capital(str(rank))} died in {rank.doing()}{beside}{why}.", evidence_lines, advice)


def _gone(evidence: Evidence) -> list[Rank]:
    """Return the ranks that have ended without a word."""
    return [rank for rank in evidence.ranks if rank.has_ended and not rank.told.said_goodbye]


def told(evidence: Evidence) -> Iterator[Cause]:
    """The job ended with an error, which names its own cause."""
    if evidence.first.reason not in ("error", "exception", "loss", "start"):
        return
    if evidence.first.reason == "loss" and _gone(evidence):  # which tells more
        return
    message = evidence.message.removeprefix("psframe: ")
    disks = [after for _, _, after, _ in evidence.machines() if nested(after, "disk", "size") > 0]
    free = min((nested(after, "disk", "free") for after in disks), default=1e18)
    full = "No space left" in message or "disk is full" in message or free < 1 << 20
    lines = [f"the disk of the run has {free / 2**20:,.1f} MiB left"] if full else []
    place = raised(evidence)
    where = f" It was raised in {place}." if place else ""
    advice = "Free space on the disk of the run, and continue with checkpoint.resume=auto." if full else ""
    who = f"Rank {evidence.first.rank} ended with " if evidence.first.reason == "exception" and ": " in message else ""
    if other_sizes(evidence):  # what MPI says of it names neither
        return
    if evidence.first.reason == "start" and any(rank.is_stopped for rank in evidence.ranks):
        return
    yield Cause(92, f"{who}{message}{'' if message.endswith('.') else '.'}{where}", lines, advice)


def does_not_return(evidence: Evidence) -> Iterator[Cause]:
    """A rank is in code that does not come back, while others wait."""
    reason = evidence.first.reason
    others_wait = any(rank.waits for rank in evidence.alive)
    if reason in ("error", "exception", "loss") or not (others_wait or reason in ("deadline", "late", "asked")):
        return
    found = [rank for rank in evidence.alive if _is_still(rank, reason)]
    found.sort(key=lambda rank: -rank.since_s)
    for rank in found[:MOST]:
        if rank.since_s > 0.5 * found[0].since_s:
            yield _stuck(evidence, rank)


def _is_still(rank: Rank, reason: str) -> bool:
    """Return True if a rank is in something that should have ended; what takes long by its nature does not count."""
    if rank.is_stopped or rank.waits or rank.goes_on or not rank.phases or rank.process.state == "gone":
        return False
    if flight.COMPILE in rank.kinds:
        return False
    if reason in ("asked", "death"):  # nothing is known to be wrong with it, and it may take long by its nature
        return rank.since_s > (max(LEAST_S, 2 * rank.usual_s) if rank.usual_s else UNUSUAL_S)
    return rank.since_s > LEAST_S


def _stuck(evidence: Evidence, rank: Rank) -> Cause:
    frame = rank.user_frame or next(iter(rank.frames), None)
    where = f" at {frame}" if frame else ""
    lines = [f"it is in {rank.doing()} for {duration(rank.since_s)}", *waiting(evidence, [rank])]
    if rank.kinds[-1] in DISK or (rank.process.state == "D" and not rank.user_frame):
        lines.append(f"its process is in state {shown(rank.process.state, 9)}{_call(rank)}")
        return Cause(
            88,
            f"{capital(str(rank))} waits for a disk, in {rank.doing()}{where}.",
            lines,
            "Look at the disk of the run (record.dir): full, slow, or a network disk that does not answer; put the run "
            "elsewhere, or write fewer checkpoints (checkpoint.every_epochs, keep).",
        )
    if rank.process.state in ("R", "?") or rank.cpu_share > 0.5:
        lines.append(f"it uses {rank.cpu_share:.0%} of a core")
        whose = "your code" if rank.user_frame else "a computation"
        return Cause(
            86,
            f"{capital(str(rank))} does not return from {whose}{where}, in {rank.doing()}.",
            lines,
            "Look for a loop without an end there." if rank.user_frame else "`--stacks` shows the lines that it is in.",
        )
    lines.append(f"it uses {rank.cpu_share:.0%} of a core{_call(rank)}")
    whose = "your code" if rank.user_frame else "a call"
    return Cause(
        86,
        f"{capital(str(rank))} waits in {whose}{where}, in {rank.doing()}, for something that does not come.",
        lines,
        "Look for a lock that is not released, or a connection that does not answer, there.",
    )


def _call(rank: Rank) -> str:
    return f", in the kernel's {shown(rank.process.call, 40)}" if rank.process.call else ""


def node_lost(evidence: Evidence) -> Iterator[Cause]:
    """Ranks wait for another node."""
    away = [rank for rank in evidence.alive if flight.NODES in rank.kinds]
    says = "cannot be reached" in evidence.message or "another node" in evidence.message
    if not (away or says) or evidence.first.reason not in ("deadline", "late"):
        return
    if any(rank.is_stopped for rank in evidence.alive):  # which says why the node does not come
        return
    hosts = ", ".join(shown(host, 60) for host in evidence.missing[:8])
    lost = f" Nothing was written by {hosts}." if hosts else ""
    nodes = {rank.host for rank in evidence.ranks}
    waits = "ranks of all nodes wait for the others: look at what lies between them, before the hosts"
    lines = [waits] if len(nodes) > 1 and nodes == {rank.host for rank in away} else []
    words = capital(evidence.message.removeprefix("psframe: ").partition("; continue with")[0])
    yield Cause(
        84,
        f"{words}.{lost}",
        [*lines, *waiting(evidence, [])],
        "Look whether that host is up, and its link; `psframe why` there tells more if its disk is another.",
    )


def behind(evidence: Evidence) -> Iterator[Cause]:
    """All wait, and one is in an earlier step than the others: it is the one that others wait for."""
    if evidence.first.reason not in ("deadline", "end"):
        return
    match = re.search(r"\branks? ([0-9]{1,9}(?:, [0-9]{1,9})*) did not ", evidence.message)
    numbers = {int(number) for number in match[1].split(", ")} if match else set()
    lost = [rank for rank in evidence.alive if rank.number in numbers]
    for rank in lost[:1]:
        yield Cause(
            40,
            f"{capital(str(rank))} did not come to the others, in {rank.doing()}.",
            waiting(evidence, [rank]),
            "`--stacks` shows the lines that it is in.",
        )


def waiting(evidence: Evidence, but: list[Rank]) -> list[str]:
    """Return lines on the ranks that wait meanwhile."""
    found = [rank for rank in evidence.alive if rank.waits and rank not in but and not rank.is_stopped]
    if not found:
        return []
    longest = max(found, key=lambda rank: rank.since_s)
    return [f"{named(found)} {'wait' if len(found) > 1 else 'waits'}, {longest} for {duration(longest.since_s)}"]


def named(ranks: list[Rank]) -> str:
    """Return ranks in words, some of many."""
    if len(ranks) == 1:
        return str(ranks[0])
    numbers = ", ".join(str(rank.number) for rank in ranks[:8])
    return f"ranks {numbers}{f' and {len(ranks) - 8} others' if len(ranks) > 8 else ''}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"


RULES = (stopped, died, told, does_not_return, node_lost, behind)
