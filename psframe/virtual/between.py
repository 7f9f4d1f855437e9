"""Messages between nodes in virtual time (:class:`Between`), and what each has waited for (:class:`Message`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from psframe.virtual.network import Network
from psframe.virtual.scheduler import Rank, Scheduler


class Message(NamedTuple):
    """A message between two nodes. It begins ``delay_s`` after message ``after`` has arrived; -1: after the start.

    ``in_stream``: it begins when the last byte of ``after`` has left, which has the same nodes.
    """

    after: int
    delay_s: float
    source: int
    target: int
    n_bytes: int
    in_stream: bool = False


Flow = tuple[int, int, int]  # source, target and bytes
Stream = tuple[int, int] | None  # a message's ranks, from and to; None for collectives


@dataclass(eq=False)
class _Arrival:
    """Event that ``n`` more messages make, at the last of which ``then`` is called."""

    then: Callable[[], None]
    n: int


class Between:
    """Carries messages of ranks over a network; the agenda of :class:`psframe.virtual.orders.ByTime`.

    Parameters
    ----------
    network : Network
    keeps : bool
        True: :attr:`messages` are kept.

    Attributes
    ----------
    ranks : Scheduler
        Whose current rank calls.
    messages : list of Message
    arrived_s : list of float
        When each has arrived.
    """

    ranks: Scheduler

    def __init__(self, network: Network, keeps: bool = False):
        self.network, self.keeps = network, keeps
        self.messages: list[Message] = []
        self.arrived_s: list[float] = []
        self._last: dict[Stream, int] = {}  # message of each stream

    def begin(self, flows: Sequence[Flow], then: Callable[[], None], stream: Stream = None) -> None:
        """Begin messages at the current rank's time, directly behind a point; ``then`` is called when all are there."""
        rank, arrival = self.ranks.current, _Arrival(then, len(flows))
        waited_s = rank.at_s - (self.arrived_s[rank.since] if rank.since >= 0 else 0.0)
        for source, target, n_bytes in flows:
            number = len(self.messages) if self.keeps else -1
            begins = self.network.begin((arrival, number), rank.at_s, source, target, n_bytes, stream)
            if self.keeps:
                waits = (rank.since, waited_s) if begins else (self._last[stream], 0.0)
                self.messages.append(Message(*waits, source, target, n_bytes, not begins))
                self.arrived_s.append(0.0)
                self._last[stream] = number

    def carry(self, source: int, target: int, n_bytes: int, stream: Stream) -> None:
        """Let the current rank wait until a message has arrived."""
        self.ranks.point()  # others begin theirs that are earlier
        me = self.ranks.current
        self.begin([(source, target, n_bytes)], partial(self._go_on, me), stream)
        self.ranks.pause()

    @property
    def next_s(self) -> float:
        return self.network.next_s

    def finish(self) -> None:
        """Let the next message arrive."""
        (arrival, number), arrived_s = self.network.finish()
        if number >= 0:
            self.arrived_s[number] = arrived_s
        arrival.n -= 1
        if not arrival.n:
            with self.ranks.event(arrived_s, number):
                arrival.then()

    def _go_on(self, rank: Rank) -> None:
        rank.since = self.ranks.current.since
        self.ranks.go_on(rank, self.ranks.current.at_s)
