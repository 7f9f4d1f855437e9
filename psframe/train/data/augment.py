"""Augmentations of training samples (:class:`Augmentation`): each fills columns of a batch's plan from uniform numbers.

A plan has a row a sample, which ``compiled.batch.gather`` reads while it copies the sample. The numbers of a sample are
drawn by (seed, epoch, sample), so that it looks the same on any rank and in any batch. Padding and what is cut out are
0 in the network's input, which is normalized: there they are the mean.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Union

import numpy as np

from psframe import compiled
from psframe.config.augment import Augment
from psframe.errors import UserError

if TYPE_CHECKING:
    from psframe.record.inputs import Inputs
    from psframe.train.data.dataset import Facts

N_DRAWN = 6  # numbers of a sample in the stream AUGMENT, of which each augmentation has its own


@dataclass(frozen=True)
class Recipe:
    """What a run makes of training samples and their labels.

    Attributes
    ----------
    seed : int
    augment : Augment
    smoothing : float
        ``train.label_smoothing``.
    """

    seed: int
    augment: Augment = field(default_factory=Augment)
    smoothing: float = 0.0


class Augmentation(Protocol):
    """One kind of augmentation.

    Attributes
    ----------
    uses : slice
        The numbers of a sample, among ``N_DRAWN``, that it reads.
    """

    uses: slice

    def fill(self, drawn: np.ndarray, plan: np.ndarray) -> None:
        """Fill its columns of ``plan``, int64 (n, N_COLUMNS), from ``drawn``, float32 (n, uses) in [0, 1)."""


class Crop:
    """Window of the input's size at a random place of the sample, with ``padding`` zeros on each side (He et al. 2016).

    Parameters
    ----------
    spare, padding : ndarray of int, shape (2,)
        By axis: values of the sample beyond the window's, and those added on each side.
    """

    uses = slice(0, 2)

    def __init__(self, spare: np.ndarray, padding: np.ndarray):
        self.n_places, self.padding = spare + 2 * padding + 1, padding

    def fill(self, drawn: np.ndarray, plan: np.ndarray) -> None:
        place = plan[:, compiled.batch.WINDOW]
        place[:] = drawn * self.n_places
        place -= self.padding


class Flip:
    """Flip of the window, of half of the samples, along each of the ``axes``: left to right, upside down."""

    uses = slice(2, 4)

    def __init__(self, axes: tuple[bool, bool]):
        self.axes = np.array(axes)

    def fill(self, drawn: np.ndarray, plan: np.ndarray) -> None:
        plan[:, compiled.batch.FLIPS] = (drawn < 0.5) & self.axes


class Cutout:
    """Rectangle of ``size`` (height, width) around a random place of the input ``sides``, clipped at its border.

    DeVries and Taylor 2017, arXiv:1708.04552; their code makes an odd size one less.
    """

    uses = slice(4, 6)

    def __init__(self, sides: np.ndarray, size: np.ndarray):
        self.sides, self.size, self.before = sides, size, size // 2

    def fill(self, drawn: np.ndarray, plan: np.ndarray) -> None:
        begin, end = plan[:, compiled.batch.CUT_BEGIN], plan[:, compiled.batch.CUT_END]
        begin[:] = drawn * self.sides
        begin -= self.before
        np.add(begin, self.size, out=end)


def chosen(asked: Augment, facts: Union["Facts", "Inputs"]) -> list[Augmentation]:
    """Return the augmentations of a config and of a dataset, in the order in which a sample passes through them."""
    axes = np.array([len(facts.shape) == 3, True])  # those of a sequence are 1, T
    sides, spare = frame(facts)
    found: list[Augmentation] = []
    if asked.crop or spare.any():
        found.append(Crop(spare, asked.crop * axes))
    flips = facts.flip or asked.flip in ("horizontal", "both"), asked.flip in ("vertical", "both")
    if any(flips):
        found.append(Flip(flips))
    if asked.cutout:
        found.append(Cutout(sides, np.where(axes, asked.cutout, 1)))
    return found


def frame(facts: Union["Facts", "Inputs"]) -> tuple[np.ndarray, np.ndarray]:
    """Return height and width of the network's input, int64 (2,), and how much larger a stored sample is."""
    sides, stored = (np.array([1, *shape[1:]][-2:]) for shape in (facts.input_shape, facts.shape))
    return sides, stored - sides


def check(asked: Augment, facts: "Facts") -> None:
    """Raise UserError if samples are too small for an augmentation, or have no such axis."""
    shape = tuple(facts.input_shape)
    side, kind = min(shape[1:]), "images" if len(shape) == 3 else "sequences"
    if asked.crop >= side:
        raise UserError(
            f"augment.crop must pad {kind} by less than their size, {side} of {shape}, got {asked.crop}; give "
            f"augment.crop={side - 1} or less"
        )
    if asked.cutout > side:
        raise UserError(
            f"augment.cutout must be at most the size of {kind}, {side} of {shape}, got {asked.cutout}; give "
            f"augment.cutout={side} or less"
        )
    if kind == "sequences" and asked.flip != "none":
        raise UserError(
            f"augment.flip must be none for sequences, {shape}, got {asked.flip}; give augment.flip=none, or mirror "
            "them in a dataset of your own"
        )
