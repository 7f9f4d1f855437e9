"""Causes that lie between nodes, in an incident (:data:`RULES`): where all of them wait, no rank is to blame."""

from collections.abc import Collection, Iterator

from psframe.doctor.why.cause import Cause
from psframe.doctor.why.evidence import Evidence, Rank, shown
from psframe.record import flight

NETWORK = flight.WAITS - {flight.GATE, flight.SOCKET}  # phases in which a rank itself waits for other nodes
WAITS = {flight.EXCHANGE, flight.GATE, *NETWORK}  # and those in which it waits for one that does
LONG_S = 0.01  # of such a phase: a shorter one is that of a network in order, or a scheduler's turn
MUCH = 0.4  # share of the time in such phases, of the rank that comes last: it waits least
LEAST_S = 2.0  # of a rank's events, that must be known


def slow_link(evidence: Evidence) -> Iterator[Cause]:
    """The exchange between nodes takes the time: each node waits for the others, and none is behind."""
    hosts = list(dict.fromkeys(rank.host for rank in evidence.alive))
    if evidence.first.reason in ("error", "exception", "death", "loss", "start") or len(hosts) < 2:
        return
    if evidence.missing or len(hosts) < len(
        {rank.host for rank in evidence.ranks if not rank.is_spare}
    ):  # nothing is known of some
        return
    if any(rank.is_stopped or not rank.told.events for rank in evidence.alive):
        return
    workers = [rank for rank in evidence.alive if flight.FORWARD in (event[0] for event in rank.told.events)]
    if not workers or min(map(_known_s, workers)) < LEAST_S:
        return
    share = min(_covered(rank, WAITS, LONG_S) / _known_s(rank) for rank in workers)
    # a server has no time for the network if it is the one that the others wait for
    by_network = [_covered(rank, NETWORK, LONG_S) / max(_known_s(rank), 1e-9) for rank in evidence.alive]
    servers = [part for rank, part in zip(evidence.alive, by_network, strict=True) if rank not in workers]
    if share > MUCH and min(servers, default=max(by_network)) > MUCH:
        yield Cause(
            72,
            f"The exchange between {len(hosts)} nodes takes {min(share, 1.0):.0%} of the time of every rank: they "
            "wait for what comes over the network, and none is behind.",
            [f"waits of {LONG_S * 1e3:.0f} ms and more count, of {', '.join(shown(host, 60) for host in hosts[:8])}"],
            "Look at the link between them (`ping`, `iperf3`) and at what else uses it; raise train.batch_size, or let "
            "less cross it, by one of the codecs.",
        )


def polls(rank: Rank) -> float:
    """Return the share of its last events' time in which a rank polled: it gives its core away there."""
    return _covered(rank, NETWORK, 0.0) / max(_known_s(rank), 1e-9)


def _known_s(rank: Rank) -> float:
    """Return the seconds up to now of which all is known: since the oldest event that is kept has ended."""
    ended = [event[4] - event[5] for event in rank.told.events]
    return max(ended or (phase[3] for phase in rank.phases), default=0.0)


def _covered(rank: Rank, kinds: Collection[int], least_s: float) -> float:
    """Return the seconds of the known ones in which a rank was in phases of ``kinds``, longer than ``least_s``."""
    open_ = [(since, since) for kind, _, _, since in rank.phases if kind in kinds]
    ended = [(began, took) for kind, _, _, _, began, took in rank.told.events if kind in kinds]
    total, until = 0.0, _known_s(rank)  # seconds before the end, up to which the time is counted
    for began, took in sorted([*open_, *ended], reverse=True):
        if took > least_s:
            first, last = min(began, until), max(began - took, 0.0)
            total += max(0.0, first - last)
            until = min(until, last)
    return total


RULES = (slow_link,)
