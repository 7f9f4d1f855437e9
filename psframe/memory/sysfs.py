"""The kernel's text files below a root (:class:`Tree`): lists, masks and numbers, with notes on unusable files."""

import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from psframe.errors import reason

#: more than any kernel's CPUs (8192) or nodes (1024); a number from here on is garbage, and would cost memory
LIMIT = 1 << 14
MAX_BYTES = 1 << 20

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6})/([0-9]{1,6}))?)?")
_WORD = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})")
_NUMBER = re.compile(r"(-?[0-9]{1,18})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_Parsed = TypeVar("_Parsed")


def parse_list(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a list in the kernel's format, ``"0-3,8"`` or ``"0-31:2/4"``; None if malformed.

    ``a-b:used/group`` stands for the first ``used`` numbers of every ``group`` from a to b. An empty list is valid.
    """
    numbers: set[int] = set()
    for part in text.replace(",", " ").split():
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        used, group = int(match[3] or 1), int(match[4] or 1)
        if first > last or last >= LIMIT or not 0 < used <= group:
            return None
        numbers.update(n for n in range(first, last + 1) if (n - first) % group < used)
    return tuple(sorted(numbers))


def parse_mask(text: str) -> tuple[int, ...] | None:
    """Return the bits set in comma-separated 32-bit hex words, the highest word first; None if malformed."""
    words = text.strip().split(",")
    if len(words) > LIMIT // 32:
        return None
    mask = 0
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            return None
        mask = mask << 32 | int(match[1], 16)
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _parse_integer(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    return int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ") if match else None


def spell(numbers: Iterable[int]) -> str:
    """Return numbers as a list in the kernel's format: ``"0-3,8"``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe in place of a file must not block


class Tree:
    """Files below ``root``, a running machine's ``/`` or a captured one. No method raises.

    A place is a path relative to the root. A missing file gives None (most are optional); an unusable one gives None
    and a note.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = os.fspath(root)
        self._notes: dict[tuple[str, str], list[str]] = {}

    def note(self, sentence: str) -> None:
        """Record a sentence for the user, once."""
        self._notes[sentence, ""] = []

    def left_out(self, place: str, why: str) -> None:
        """Record a note on an unusable file; files that differ only in numbers, with one reason, share one."""
        self._notes.setdefault((re.sub("[0-9]+", "*", place), why), []).append(place)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on missing or malformed files, and the assumptions made instead."""
        lines = []
        for (sentence, why), places in self._notes.items():
            more = f" (and {len(set(places)) - 1} files like it)" if len(set(places)) > 1 else ""
            lines.append(f"{ascii(places[0])[1:-1]}{more} {why}; left out." if places else sentence)
        return tuple(lines)

    def text(self, place: str, most: int = MAX_BYTES, head: bool = False) -> str | None:
        """Return a file's text; None with a note if it exceeds ``most`` bytes, unless only its ``head`` is wanted."""
        try:
            with open(os.path.join(self.root, place), "rb", buffering=0, opener=_open) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    self.left_out(place, "is no file")
                    return None
                data = b""
                while len(data) <= most and (chunk := file.read(most + 1 - len(data))):
                    data += chunk
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:  # ValueError: a place, taken from another file, that holds a NUL
            self.left_out(place, f"cannot be read ({reason(error)})")
            return None
        if len(data) > most and not head:
            self.left_out(place, f"has more than {most:,} bytes")
            return None
        return data[:most].decode("utf-8", "replace").rstrip("\0")  # some tools that capture trees pad files

    def names(self, place: str) -> list[str]:
        """Return the names in a folder, sorted; [] if it is missing or unreadable."""
        try:
            return sorted(os.listdir(os.path.join(self.root, place)))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            self.left_out(place, f"cannot be listed ({reason(error)})")
            return []

    def numbered(self, place: str, prefix: str) -> list[int]:
        """Return the numbers of the entries ``prefix0``, ``prefix1``, ... of a folder, ascending."""
        pattern = re.compile(re.escape(prefix) + "(0|[1-9][0-9]{0,4})")
        numbers = (int(match[1]) for name in self.names(place) if (match := pattern.fullmatch(name)))
        return sorted(number for number in numbers if number < LIMIT)

    def numbers(self, place: str) -> tuple[int, ...] | None:
        """Return the numbers in a list file; None if it is missing or malformed."""
        return self._parsed(place, parse_list, "list of numbers")

    def bits(self, place: str) -> tuple[int, ...] | None:
        """Return the bits set in a mask file; None if it is missing or malformed."""
        return self._parsed(place, parse_mask, "mask")

    def integer(self, place: str) -> int | None:
        """Return the integer in a file; None if missing or malformed. Sizes may end in K, M, G or T, powers of 1024."""
        return self._parsed(place, _parse_integer, "number")

    def _parsed(self, place: str, parse: Callable[[str], _Parsed | None], what: str) -> _Parsed | None:
        text = self.text(place)
        value = None if text is None else parse(text)
        if text is not None and value is None:
            self.left_out(place, f"is no {what}")
        return value
