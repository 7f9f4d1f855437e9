"""The command line of every command."""

import argparse
from typing import Any

from psframe.errors import UserError, reason


class Parser(argparse.ArgumentParser):
    """Raises a UserError for a mistake in the command line, and leaves ``-h`` to the caller."""

    def __init__(self, usage: str, description: str):
        super().__init__(usage=usage, description=description, add_help=False)
        self.add_argument("-h", "--help", action="store_true", help="print this, and exit")

    def error(self, message: str) -> Any:
        raise UserError(f"the command must be `{self.usage}`, got an error ({message}); see --help")


def no_folder(out: object, error: OSError) -> UserError:
    """Return the error of an ``--out`` that cannot be written."""
    return UserError(f"--out must be a folder that can be written, got {str(out)!r} ({reason(error)}); give another")
