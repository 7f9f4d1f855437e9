"""Groups of tensors with a learning rate or decay of their own (:class:`Group`), as parts of a vector."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from psframe.config.registry import NonNegative, convert
from psframe.errors import UserError, nearest
from psframe.memory.arena import Layout

Groups = list[dict[str, Any]] | None  #: as a config has them

#: start, stop, trained, factor of the learning rate, decay, adapts: as compiled.elementwise.Parts takes them
Row = tuple[int, int, bool, float, float, bool]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors whose names match a shell pattern, such as ``*.bias``; where several groups match, the last one counts.

    Attributes
    ----------
    tensors : str
        The pattern.
    lr : float
        Factor of the learning rate.
    weight_decay : float or None
        In place of the optimizer's; None: as without the group.
    adapt : bool
        False if LARS and LAMB leave the tensors' learning rate as it is.
    """

    tensors: str
    lr: NonNegative = 1.0
    weight_decay: NonNegative | None = None
    adapt: bool = True


def read(groups: Groups, by_tensor: bool = False) -> list[Group]:
    """Return the groups of a config; UserError for what is none.

    ``by_tensor`` is True for an optimizer with a trust ratio.
    """
    found = []
    for number, group in enumerate(groups or ()):
        where, keys = f"optimizer.groups[{number}]", Group.__struct_fields__
        for key, value in group.items():
            if key not in keys:
                raise UserError(f"{where}.{key} is no key of a group (got {value!r}); {nearest(key, keys)}")
        if "tensors" not in group:
            raise UserError(f"{where}.tensors must be a pattern of names, got none; add one, as '*.bias'")
        if "adapt" in group and not by_tensor:
            raise UserError(f"{where}.adapt is for lars and lamb, got it for another optimizer; leave it out")
        found.append(convert(where, group, Group))
    return found


def check(groups: Sequence[Group], layout: Layout) -> None:
    """Raise UserError if a group matches none of a network's trained tensors."""
    names = [name for name, slot in layout.slots.items() if slot.start < layout.n_trained]
    patterns = {f"*.{name.rpartition('.')[2]}" for name in names}
    for number, group in enumerate(groups):
        if not any(fnmatchcase(name, group.tensors) for name in names):
            raise UserError(
                f"optimizer.groups[{number}].tensors must match a trained tensor of the model, got {group.tensors!r}; "
                f"{nearest(group.tensors, [*names, *patterns])}"
            )


def rows(layout: Layout, groups: Sequence[Group], decay: float, decays_vectors: bool) -> list[Row]:
    """Return a row for every tensor, without the gaps between them."""
    found: list[Row] = []
    for name, slot in layout.slots.items():
        if slot.start >= layout.n_trained:
            found.append((slot.start, slot.stop, False, 1.0, 0.0, False))
            continue
        group = next((g for g in reversed(groups) if fnmatchcase(name, g.tensors)), Group(tensors=name))
        own = decay if decays_vectors or len(slot.shape) > 1 else 0.0
        own = own if group.weight_decay is None else group.weight_decay
        found.append((slot.start, slot.stop, True, group.lr, own, group.adapt))
    return found


def merged(rows: Sequence[Row], layout: Layout) -> list[Row]:
    """Return rows with the gaps, one for all neighbours that have the same rule."""
    found: list[Row] = []
    stops = [*(start for start, *_ in rows[1:]), layout.size]
    for (start, _, *rule), stop in zip(rows, stops, strict=False):
        if found and list(found[-1][2:]) == rule:
            start = found.pop()[0]
        found.append((start, stop, *rule))  # type: ignore[arg-type]
    return found or [(0, layout.size, True, 1.0, 0.0, True)]
