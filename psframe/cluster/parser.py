"""The command line of every command."""

import argparse
import math
import re
from typing import Any

from psframe.errors import UserError, reason

MOST_COUNT = 1 << 31  # of an option that is a whole number
MOST_NUMBER = 1e9  # and of one that is any


def number(text: str) -> float:
    """Return an option's number, for argparse, which names it: no command knows what -1 would be."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= MOST_NUMBER:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {MOST_NUMBER:,.0f}, got {text!r}")
    return found


def whole(text: str) -> int:
    """Return an option's whole number, for argparse."""
    found = int(text) if re.fullmatch(r"[+-]?[0-9]{1,12}", text) else None
    if found is None or abs(found) > MOST_COUNT:
        raise argparse.ArgumentTypeError(f"must be a whole number of at most {MOST_COUNT:,}, got {text!r}")
    return found


def counts(text: str, most: int = MOST_COUNT) -> list[int]:
    """Return the whole numbers from 1 to ``most`` that ``text`` lists between commas; [] where any of it is none."""
    words = text.split(",")
    found = [int(word) for word in words if re.fullmatch(r"\s*[0-9]{1,10}\s*", word)]
    return found if len(found) == len(words) and all(1 <= n <= most for n in found) else []


class Parser(argparse.ArgumentParser):
    """Raises a UserError for a mistake in the command line, and leaves ``-h`` to the caller."""

    def __init__(self, usage: str, description: str):
        super().__init__(usage=usage, description=description, add_help=False)
        # so that no option takes nan, by which a command may never end, nor what overflows later
        self.register("type", float, number)
        self.register("type", int, whole)
        self.add_argument("-h", "--help", action="store_true", help="print this, and exit")

    def error(self, message: str) -> Any:
        raise UserError(f"the command must be `{self.usage}`, got an error ({message}); see --help")


def no_folder(out: object, error: OSError) -> UserError:
    """Return the error of an ``--out`` that cannot be written."""
    return UserError(f"--out must be a folder that can be written, got {str(out)!r} ({reason(error)}); give another")
