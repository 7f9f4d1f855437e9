"""State that the ranks of a communicator share (:class:`Space`): messages to each, and collectives in progress."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI


@dataclass
class Meeting:
    """Parts of the ranks in one collective, by rank; ``made`` of them is something that all share, once.

    ``brought`` has the parts' bytes by node; ``waits`` whom it tells that a rank's part is there, or, under -1, all.
    """

    parts: dict[int, Any] = field(default_factory=dict)
    brought: Counter[int] = field(default_factory=Counter)
    waits: dict[int, list[Callable[[], None]]] = field(default_factory=lambda: defaultdict(list))
    made: list[Any] = field(default_factory=list)
    n_left: int = 0


@dataclass(eq=False)
class Letter:
    """A message, which ``is_there`` once its bytes are."""

    source: int
    tag: int
    data: Any
    is_there: bool = False


class Box:
    """Messages to a rank: those ``there``, of each source in the order in which they were sent."""

    def __init__(self) -> None:
        self.there: deque[Letter] = deque()
        self._coming: dict[int, deque[Letter]] = defaultdict(deque)

    def expect(self, letter: Letter) -> None:
        self._coming[letter.source].append(letter)

    def arrive(self, letter: Letter) -> None:
        letter.is_there = True
        stream = self._coming[letter.source]
        while stream and stream[0].is_there:
            self.there.append(stream.popleft())


@dataclass(frozen=True)
class Turn:
    """A receive that has begun."""

    source: int
    tag: int

    def fits(self, source: int, tag: int) -> bool:
        """Return True if it takes a message from that rank with that tag."""
        return self.source in (source, MPI.ANY_SOURCE) and self.tag in (tag, MPI.ANY_TAG)


@dataclass
class Smaller:
    """Ranks that have come to form a smaller communicator, and its state, once all are there that live."""

    present: set[int] = field(default_factory=set)
    space: Any = None


class Space:
    """State that the ranks of a communicator share.

    Parameters
    ----------
    numbers : sequence of int
        Theirs in the scheduler.
    node_of : sequence of int
        Node of each rank of the scheduler.

    Attributes
    ----------
    nodes : tuple of int
        Node of each of its ranks.
    sizes : dict of int to int
        Number of these on each node that has any, in the order of the nodes.
    """

    def __init__(self, numbers: Sequence[int], node_of: Sequence[int]):
        self.numbers = tuple(numbers)
        self.nodes = tuple(node_of[number] for number in numbers)
        self.sizes = dict(sorted(Counter(self.nodes).items()))
        self.meetings: dict[int, Meeting] = defaultdict(Meeting)
        self.mail: dict[int, Box] = defaultdict(Box)  # to a rank
        self.turns: dict[int, list[Turn]] = defaultdict(list)  # of a rank
        self.is_revoked = False
        self.shrinking: dict[int, Smaller] = defaultdict(Smaller)  # by the number of the call
