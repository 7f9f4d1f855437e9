"""Length of a vector, and the places at which ranks may cut it (:class:`Extent`)."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal

#: places at which an optimizer lets vectors be cut
Places = Literal["anywhere", "tensors", "nowhere"]


class Extent(int):
    """Length of a vector: an int that knows where the vector may be cut among ranks that update a segment each.

    Sums may be cut anywhere; only segments of an update heed the places.

    Attributes
    ----------
    places : tuple of int or None
        From 0 to the length, ascending; None: anywhere.
    """

    places: tuple[int, ...] | None

    def __new__(cls, size: int, places: Iterable[int] | None = None) -> "Extent":
        made = super().__new__(cls, size)
        made.places = None if places is None else tuple(sorted({0, int(size), *places}))
        return made

    @property
    def most_parts(self) -> int:
        """Number of parts into which the vector can be cut at most."""
        return int(self) if self.places is None else max(1, len(self.places) - 1)

    def nearest(self, at: int) -> int:
        """Return the place nearest to ``at``, which lies in the vector."""
        if self.places is None:
            return at
        index = bisect_left(self.places, at)
        above, below = self.places[index], self.places[max(0, index - 1)]
        return above if above - at <= at - below else below

    def allowed(self, places: Iterable[int]) -> list[int]:
        """Return those of ``places`` at which the vector may be cut."""
        return [place for place in places if self.places is None or place in self.places]

    def cut(self, parts: int, part: int, within: slice | None = None) -> slice:
        """Return the ``part``-th of ``parts`` nearly equal consecutive pieces, of the vector or of a slice of it.

        The ends of the slice are places. Pieces may be empty, the last ones first: the first has all that cannot be
        cut.
        """
        start, stop = (0, int(self)) if within is None else (within.start, within.stop)
        if self.places is not None:
            inside = bisect_left(self.places, stop) - bisect_left(self.places, start)
            parts = max(1, min(parts, inside))
        ends = [
            min(stop, max(start, self.nearest(start + (stop - start) * min(number, parts) // parts)))
            for number in (part, part + 1)
        ]
        return slice(*ends)
