"""Description of a run's samples (:class:`Inputs`): their shape and normalization, kept in the run's ``input.json``."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psframe.config import untrusted
from psframe.errors import UserError, reason
from psframe.record import sealed
from psframe.record.folder import Folder

FILE = "input.json"
MAX_BYTES = 1 << 20
MAX_SIDE = 1 << 20  # of a sample's shape


@dataclass(frozen=True)
class Inputs:
    """Samples as a run's network takes them.

    Attributes
    ----------
    shape : list of int
        Shape of a stored sample: (C, H, W) or (C, T).
    dtype : str
        ``uint8`` or ``float32``.
    n_classes : int
    crop : list of int or None
        Height and width of the network's input if smaller than stored: the centre is used.
    mean, std : list of float
        Per channel, in stored units: the network's input is ``(x - mean) / std``.
    """

    shape: list[int]
    dtype: str
    n_classes: int
    crop: list[int] | None
    mean: list[float]
    std: list[float]
    flip = False

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (C, T), as the network sees it."""
        return (self.shape[0], *self.crop) if self.crop else tuple(self.shape)

    def write(self, run: Path) -> None:
        """Write the file durably. OSError if it cannot be written."""
        sealed.put(run / FILE, json.dumps(asdict(self)) + "\n")


def read(run: Path) -> Inputs:
    """Return the description of a run's samples; UserError if it is missing or damaged."""
    try:
        with Folder(run) as folder, folder.open(FILE) as file:
            values = untrusted.of_json(untrusted.all_of(file, MAX_BYTES, run / FILE))
        return _checked(values)
    except FileNotFoundError:
        raise UserError(
            f"a run must have {FILE}, with the shape and normalization of its samples, got none in {str(run)!r}; "
            "continue the run for an epoch, which writes it"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{str(run / FILE)!r} must be as psframe wrote it, got {reason(error)}; restore it") from None


def _checked(values: Any) -> Inputs:
    """Return the description in a parsed file; ValueError or TypeError if it is malformed."""
    inputs = Inputs(**values)
    sides = [*inputs.shape, inputs.n_classes, *(inputs.crop or ())]
    if not all(type(n) is int and 0 < n <= MAX_SIDE for n in sides) or len(inputs.shape) not in (2, 3):
        raise ValueError("a shape of no sample")
    if inputs.crop is not None and (len(inputs.shape) != 3 or len(inputs.crop) != 2):
        raise ValueError("a crop of no image")
    if any(of_crop > side for of_crop, side in zip(inputs.crop or (), inputs.shape[1:], strict=False)):
        raise ValueError("a crop that is larger than the sample")
    if inputs.dtype not in ("uint8", "float32"):
        raise ValueError("a dtype of no sample")
    for row, above in ((inputs.mean, -math.inf), (inputs.std, 0.0)):
        if len(row) != inputs.shape[0] or not all(type(x) in (int, float) and above < x < math.inf for x in row):
            raise ValueError("no mean and deviation of each channel")
    return inputs
