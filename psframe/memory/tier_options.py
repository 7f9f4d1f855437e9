"""Ways in which a tensor may use tiers of memory (:class:`Option`), and the time of a step that each takes.

A step takes, for each tensor, the bytes that it moves there over the tier's bandwidth. A written byte counts twice,
since a cache reads a line before it is written (write allocation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

WRITE_COST = 2  # a line is read and written
MOST_WEIGHT = 4  # of the slower tier's share of a split tensor: pages take turns in short rounds
#: parts of a tensor in the fastest tier, into which it does not fit as a whole, and in the next one
PARTS = ((7, 1), (3, 1), (1, 1), (1, 3), (1, 7), (1, 15))
PART_BYTES = 1 << 20  # smaller tensors have one tier: pages are too coarse for their parts
UNHIDDEN = 1 / 16  # of the time of a move that compute does not hide
LEAD = 2  # phases before its use in which a tensor comes to fast memory


@dataclass(frozen=True)
class Window:
    """Phases of a step in which an activation is used.

    A step has ``2 * n_layers`` phases: each layer's forward pass in order, then each one's backward pass in reverse.

    Attributes
    ----------
    first, last : int
        Layers, from 0: the one that writes the activation, and the next one that keeps any, behind which none reads it.
    n_layers : int
    """

    first: int
    last: int
    n_layers: int

    @property
    def n_phases(self) -> int:
        return 2 * self.n_layers

    @property
    def backward(self) -> int:
        """First phase of its use in the backward pass."""
        return self.n_phases - 1 - self.last

    @property
    def between(self) -> range:
        """Phases between its forward and its backward use, less those in which it comes back."""
        return range(self.last + 1, self.backward - LEAD)

    @property
    def within(self) -> range:
        """Phases from its first use to its last one, and those before in which it comes."""
        return range(self.first - LEAD, self.n_phases - self.first)


@dataclass(frozen=True)
class Item:
    """Tensor of all ranks that share memory.

    Attributes
    ----------
    place : str
        See :mod:`psframe.memory.tensor_names`.
    n_bytes : int
        Size in whole pages, on all of these ranks.
    read, written : int
        Bytes of a step.
    window : Window or None
        None if its use in a step is not known by phases.
    """

    place: str
    n_bytes: int
    read: int = 0
    written: int = 0
    window: Window | None = None

    @property
    def moved(self) -> int:
        """Bytes to and from memory."""
        return self.read + WRITE_COST * self.written


@dataclass(frozen=True)
class Tier:
    """Memory of one kind.

    Attributes
    ----------
    name : str
    gbps : float
        Bandwidth in GB/s.
    n_bytes : int
        Room.
    """

    name: str
    gbps: float
    n_bytes: int


@dataclass(frozen=True)
class Option:
    """Use of the tiers by one tensor: of all its bytes, a share in each, by weights.

    Attributes
    ----------
    weights : tuple of int
        Of each tier, between steps.
    adds : bool
        True if the parts are taken to be moved at the same time.
    moves : {'', 'out', 'in'}
        ``out``: it leaves for the next slower tier between its forward and its backward use. ``in``: it comes to the
        next faster tier from its first use to its last one.
    """

    weights: tuple[int, ...]
    adds: bool = False
    moves: str = ""

    @property
    def tiers(self) -> list[int]:
        """The tiers that it has bytes in between steps."""
        return [tier for tier, weight in enumerate(self.weights) if weight]

    @property
    def pair(self) -> tuple[int, int]:
        """The faster and the slower tier of one that moves."""
        (home,) = self.tiers
        return (home, home + 1) if self.moves == "out" else (home - 1, home)

    def is_for(self, item: Item) -> bool:
        """Return True if the item is large enough for it, and is unused for long enough."""
        if self.moves:
            window = item.window
            if window is None or not (len(window.between) > 0 if self.moves == "out" else window.within.start > 0):
                return False
        return (len(self.tiers) == 1 and not self.moves) or item.n_bytes >= PART_BYTES

    def n_bytes(self, item: Item, tier: int, phase: int = 0) -> int:
        """Return an item's bytes in a tier in a phase of a step, rounded up.

        One that moves has its room in the slower tier all the time.
        """
        if self.moves and item.window:
            faster, slower = self.pair
            is_in = phase not in item.window.between if self.moves == "out" else phase in item.window.within
            return item.n_bytes if tier == slower or (tier == faster and is_in) else 0
        return -(-item.n_bytes * self.weights[tier] // sum(self.weights))

    def seconds(self, item: Item, tiers: Sequence[Tier]) -> float:
        """Return the time that an item's bytes take in a step."""
        if self.moves:
            fast, slow = (tiers[tier].gbps * 1e9 for tier in self.pair)
            # once each way: read in one tier, written in the other
            on_the_way = (1 + WRITE_COST) * item.n_bytes * (1 / fast + 1 / slow)
            return item.moved / fast + UNHIDDEN * on_the_way
        shares = [(self.weights[tier] / sum(self.weights), tiers[tier].gbps) for tier in self.tiers]
        return (max if self.adds else sum)(item.moved * share / (gbps * 1e9) for share, gbps in shares)

    def bytes_on_the_way(self, item: Item) -> int:
        """Return the bytes that go from one tier to another in a step."""
        return 2 * item.n_bytes if self.moves else 0


def options(tiers: Sequence[Tier], splits: bool, moves: bool = False) -> list[Option]:
    """Return the options: each tier alone, the fastest first; parts in the first two; with ``splits``, neighbours.

    These are in proportion to their bandwidths. With ``moves`` a tensor may go from a tier to its neighbour and back.
    """
    n = len(tiers)

    def of(weights: Mapping[int, int], adds: bool = False, moves: str = "") -> Option:
        return Option(tuple(weights.get(k, 0) for k in range(n)), adds, moves)

    found = [of({tier: 1}) for tier in range(n)]
    found += [of({0: a, 1: b}) for a, b in PARTS if n > 1]
    for fast, slow in pairwise(range(n)) if splits else ():
        ratio = Fraction(tiers[fast].gbps / tiers[slow].gbps).limit_denominator(MOST_WEIGHT)
        found.append(of({fast: ratio.numerator, slow: ratio.denominator}, adds=True))
    for fast, slow in pairwise(range(n)) if moves else ():
        found += [of({fast: 1}, moves="out"), of({slow: 1}, moves="in")]
    return found
