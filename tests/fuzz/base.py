"""What a target is: valid inputs, and a way to have psframe read other ones."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psframe.errors import MAX_SAID, UserError

#: ``read(input)`` has psframe read it; it raises nothing
Read = Callable[[bytes], None]


@dataclass(frozen=True)
class Prepared:
    """A reader over a folder of its own: inputs that it accepts, and what gives it others."""

    seeds: list[bytes]
    read: Read


#: ``make(folder)`` writes what stands around the input into an empty folder
Make = Callable[[Path], Prepared]


@contextmanager
def told():
    """Allow a UserError that is a sentence of one line, which a terminal shows as it is; and nothing else."""
    try:
        yield
    except UserError as error:
        sentence = str(error)
        assert sentence.isprintable(), f"not one printable line: {sentence!a}"
        assert 10 < len(sentence) < 3 * MAX_SAID, f"no sentence: {sentence!a}"
