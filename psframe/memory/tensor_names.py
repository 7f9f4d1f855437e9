"""Names of tensors in memory, and patterns that choose some of them (:class:`Names`).

A tensor is named as in a checkpoint, ``0.Conv2d.weight``, and an activation likewise, ``0.Conv2d.kept``: the number of
its layer, the layer's kind, and its use. Patterns may also count a layer among those of its kind, in one and in two
dimensions together: ``conv1.weight``.
"""

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from psframe.errors import UserError, nearest


def place_of(role: str, tensor: str) -> str:
    """Return the key of a tensor's memory, ``activations/0.Conv2d.kept``; the role's own without a tensor."""
    return f"{role}/{tensor}" if tensor else role


def role_of(place: str) -> str:
    """Return the role of a place."""
    return place.partition("/")[0]


def tensor_of(place: str) -> str:
    """Return the tensor of a place; "" if it is all of a role, or the rest."""
    return place.partition("/")[2]


def key_of(place: str) -> str:
    """Return the config's key of a place, for messages."""
    return f"placement.{role_of(place)}" + (f", {tensor}" if (tensor := tensor_of(place)) else "")


class Names:
    """Tensors of a network, and the spellings under which patterns find them.

    Parameters
    ----------
    tensors : iterable of str
        Names of the tensors of all ranks, ``number.kind.use``; others have no counted spelling.
    """

    def __init__(self, tensors: Iterable[str]):
        self.tensors = sorted(set(tensors), key=lambda name: (_layer(name), name))
        numbers: dict[str, list[int]] = {}
        for name in self.tensors:
            number, kind = _layer(name)
            bare = re.sub("[123]d$", "", kind)
            if kind and number not in numbers.setdefault(bare, []):
                numbers[bare].append(number)
        self._counted = {n: f"{bare}{k}" for bare, found in numbers.items() for k, n in enumerate(found, 1)}

    def spellings(self, tensor: str) -> tuple[str, ...]:
        """Return, in small letters, ``0.conv.weight``, ``0.conv``, ``conv1.weight`` and ``conv1``."""
        lower, counted = tensor.lower(), self._counted.get(_layer(tensor)[0])
        if counted is None:
            return (lower,)
        number, kind, use = lower.split(".", 2)
        return (lower, f"{number}.{kind}", f"{counted}.{use}", counted)

    def chosen(self, tensor: str, patterns: Iterable[str]) -> str | None:
        """Return the first pattern that matches a spelling of the tensor; ``*`` and ``?`` as in a shell."""
        spellings = self.spellings(tensor)
        return next((p for p in patterns if any(fnmatchcase(name, p.lower()) for name in spellings)), None)

    def check(self, key: str, patterns: Collection[str]) -> None:
        """Raise UserError for a pattern that places no tensor: none matches it, or others before it match them all.

        ``key`` is the config's.
        """
        first = {self.chosen(name, patterns) for name in self.tensors}
        for pattern in patterns:
            if pattern in first:
                continue
            if not any(self.chosen(name, [pattern]) for name in self.tensors):
                # of several kinds of names: the layers counted, and the tensors in full
                valid = [*dict.fromkeys(self._counted.values()), *self.tensors]
                raise UserError(
                    f"{key}: a pattern must match a tensor or a layer, got {pattern!r}; {nearest(pattern, valid)}; "
                    "* stands for any characters, as in 'dense*' or '*.bias'"
                )
            raise UserError(
                f"{key}: a pattern must place some tensor, got {pattern!r}, whose tensors are all placed by patterns "
                "before it; put special patterns before general ones"
            )


def _layer(tensor: str) -> tuple[int, str]:
    """Return the number and the kind, in small letters, of a tensor's layer; (-1, "") if its name has none."""
    number, _, rest = tensor.partition(".")
    kind, dot, _ = rest.partition(".")
    return (int(number), kind.lower()) if dot and number.isascii() and number.isdecimal() else (-1, "")
