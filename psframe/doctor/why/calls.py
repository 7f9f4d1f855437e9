"""Calls of MPI that do not fit together, in an incident (:data:`RULES`)."""

from collections.abc import Iterator
from typing import TypeVar

from psframe.doctor.why.cause import Cause
from psframe.doctor.why.evidence import FRAME, Evidence, Frame, Rank
from psframe.record import flight

T = TypeVar("T")

LEAST_S = 0.5  # that ranks must be in their calls: those of groups may be in calls of their own for a moment
#: calls to which each rank gives as many bytes
EVEN = ("Bcast", "Reduce", "Allreduce", "Gather", "Allgather", "Alltoall", "Reduce_scatter_block", "Scan", "Exscan")
EVEN_KINDS = frozenset(flight.MPI + flight.CALLS.index(name) for name in EVEN)
TRUNCATED = ("MPI_ERR_TRUNCATE", "essage truncated")  # as MPIs say it


def mismatch(evidence: Evidence) -> Iterator[Cause]:
    """Ranks are in calls of MPI that do not fit together."""
    ranks = [rank for rank in evidence.alive if rank.phases and rank.kinds[-1] in flight.COLLECTIVES]
    if len(ranks) < 2 or any(rank.is_stopped or rank.goes_on for rank in evidence.alive):
        return
    if any(not rank.waits for rank in evidence.alive):  # who has not come to a call is the cause
        return
    if min(rank.since_s for rank in ranks) < LEAST_S:
        return
    if len({rank.told.step for rank in ranks}) > 1:
        return
    calls = {rank.number: rank.kinds[-1] for rank in ranks}
    if len(set(calls.values())) < 2:
        return
    odd, others = _parted(ranks, calls)
    places = [
        f"{rank} is in {rank.doing()}{f', at {rank.user_frame}' if rank.user_frame else ''}" for rank in ranks[:6]
    ]
    yield Cause(
        90,
        f"The ranks call MPI in ways that do not fit: {odd[0]} is in {odd[0].doing()}, and {others[0]} in "
        f"{others[0].doing()}.",
        places,
        "Every rank must make the same calls in the same order; look at the condition around that call.",
    )


def sizes(evidence: Evidence) -> Iterator[Cause]:
    """Ranks give one call of MPI different numbers of bytes."""
    if found := other_sizes(evidence):
        kind, by_rank = found
        odd, others = _parted([rank for rank in evidence.ranks if rank.number in by_rank], by_rank)
        name = flight.NAMES[kind]
        frame = raised(evidence) if odd[0].number == evidence.first.rank else odd[0].user_frame
        place = f" at {frame}" if frame else ""
        yield Cause(
            93,
            f"The ranks call {name} with different sizes: {odd[0]} with {by_rank[odd[0].number]:,} bytes{place}, and "
            f"{others[0]} with {by_rank[others[0].number]:,}.",
            [f"{rank}: {by_rank[rank.number]:,} bytes" for rank in [*odd, *others][:6]],
            "Every rank must give such a call as many numbers, of one type; look at what decides its size.",
        )


def other_sizes(evidence: Evidence) -> tuple[int, dict[int, int]] | None:
    """Return the kind of a call to which ranks gave different numbers of bytes, and these by rank; None for none."""
    fails = evidence.first.reason == "exception" and any(word in evidence.first.message for word in TRUNCATED)
    if not fails and evidence.first.reason not in ("deadline", "late"):
        return None
    last = {rank.number: _last(rank) for rank in evidence.ranks if not rank.is_spare}
    if not fails and (evidence.missing or any(flight.NODES in rank.kinds for rank in evidence.alive)):
        return None  # another node does not come, and groups of ranks may be in calls of their own
    if not fails and any(rank.goes_on or not rank.waits or rank.since_s < LEAST_S for rank in evidence.alive):
        return None
    kinds, by_rank = {call[0] for call in last.values()}, {number: call[1] for number, call in last.items()}
    if len(kinds) != 1 or not kinds <= EVEN_KINDS or min(by_rank.values()) < 1 or len(set(by_rank.values())) < 2:
        return None
    return next(iter(kinds)), by_rank


def raised(evidence: Evidence) -> str:
    """Return the user's line that an exception's traceback names last, "" if there is none."""
    library = next((rank.library for rank in evidence.ranks), [])
    frames = [Frame(file, int(line), name) for file, line, name in FRAME.findall(evidence.first.details)]
    own = [frame for frame in frames if not frame.file.startswith(("<", *library)) and not frame.file.endswith(".pyx")]
    return str(own[-1]) if own else ""


def _last(rank: Rank) -> tuple[int, int]:
    """Return the kind and the bytes of the call that a rank is in, or that it has left last: (0, 0) for none."""
    if rank.phases and rank.kinds[-1] >= flight.MPI:
        return rank.kinds[-1], rank.phases[-1][2]
    calls = ((kind, b) for kind, _, _, b, _, _ in reversed(rank.told.events) if kind >= flight.MPI)
    return next(calls, (0, 0)) if not rank.waits or rank.kinds[-1] == flight.EXCHANGE else (0, 0)


def _parted(ranks: list[Rank], values: dict[int, T]) -> tuple[list[Rank], list[Rank]]:
    """Return the ranks whose value is not that of most, and the others; of two, the first is such a one."""
    most = max(values.values(), key=[*values.values()].count)
    odd = [rank for rank in ranks if values[rank.number] != most] or ranks[:1]
    return odd, [rank for rank in ranks if rank not in odd]


RULES = (mismatch, sizes)
