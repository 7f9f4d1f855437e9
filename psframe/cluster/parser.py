"""Command line of every command (:class:`Parser`)."""

import argparse
import math
import re
from typing import Any

from psframe.errors import UserError, reason
from psframe.record.view import say

MAX_COUNT = 1 << 31  # of an integer option
MAX_NUMBER = 1e9  # of a float option


def number(text: str) -> float:
    """Return an option's number for argparse, which names the option; it must be from 0 to MAX_NUMBER."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {MAX_NUMBER:,.0f}, got {text!r}")
    return value


def whole(text: str) -> int:
    """Return an option's integer for argparse; its absolute value must be at most MAX_COUNT."""
    value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,12}", text) else None
    if value is None or abs(value) > MAX_COUNT:
        raise argparse.ArgumentTypeError(f"must be a whole number of at most {MAX_COUNT:,}, got {text!r}")
    return value


def counts(text: str, most: int = MAX_COUNT) -> list[int]:
    """Return the integers from 1 to ``most`` that ``text`` lists between commas; [] if any entry is something else."""
    words = text.split(",")
    numbers = [int(word) for word in words if re.fullmatch(r"\s*[0-9]{1,10}\s*", word)]
    return numbers if len(numbers) == len(words) and all(1 <= n <= most for n in numbers) else []


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UserError for a mistake, and for ``-h`` prints the help and raises SystemExit.

    Over ranks, :func:`psframe.cluster.command.asked` parses.

    Parameters
    ----------
    usage, description : str
    example : str
        A command, printed at the end of the help.
    """

    def __init__(self, usage: str, description: str, example: str = ""):
        super().__init__(usage=usage, description=description, add_help=False)
        self.example = example
        # options reject nan, with which a command may never end, and numbers that overflow later
        self.register("type", float, number)
        self.register("type", int, whole)
        self.add_argument("-h", "--help", action="help", help="print this, and exit")

    def format_help(self) -> str:
        example = f"\nexample:\n  {self.example}\n" if self.example else ""
        return super().format_help() + example

    def print_help(self, file: Any = None) -> None:
        say(self.format_help())  # stdout may be closed

    def error(self, message: str) -> Any:
        raise UserError(f"the command must be `{self.usage}`, got an error ({message}); see --help")


def no_folder(out: object, error: OSError) -> UserError:
    """Return the error for an ``--out`` that cannot be written."""
    return UserError(f"--out must be a folder that can be written, got {str(out)!r} ({reason(error)}); give another")
