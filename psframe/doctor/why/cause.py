"""Cause of what went wrong, or is slow, with what speaks for it (:class:`Cause`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """A sentence that accuses, its evidence, and what to do.

    Attributes
    ----------
    weight : float
        How likely it is, from 0 to 100, to order causes by.
    """

    weight: float
    sentence: str
    evidence: Sequence[str] = field(default_factory=list)
    advice: str = ""
