"""Command ``psframe new DIR``: write a folder with a config and strategies of one's own (:func:`main`)."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.errors import UserError, reason

TEMPLATE = Path(__file__).with_name("template")
USAGE = "psframe new DIR"
EXAMPLE = "psframe new my_run && cd my_run && psframe train -n 4 config.yaml"


def main(argv: Sequence[str]) -> int:
    """Write the folder; return the exit status."""
    parser = Parser(USAGE, "Write a config, a model, a dataset and a collective of your own, ready to train.", EXAMPLE)
    parser.add_argument("folder", nargs="?", help="a folder that is not there, or is empty")
    arguments = parser.parse_args(argv)
    if arguments.folder is None:
        parser.error("it names no folder")
    folder = Path(arguments.folder)
    _write(folder)
    print(f"wrote {', '.join(sorted(path.name for path in folder.iterdir()))} to {folder}\n\n    cd {folder}")
    print("    psframe train -n 4 config.yaml")
    return 0


def _write(folder: Path) -> None:
    """Write the files of the template to ``folder``. Raises UserError if there is something already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"psframe new must be given a folder that is empty, got {str(folder)!r}; name another")
        for source in sorted(TEMPLATE.iterdir()):
            if source.suffix in (".py", ".yaml"):
                shutil.copyfile(source, folder / source.name)
    except OSError as error:
        raise UserError(
            f"psframe new must be given a folder that can be written, got {str(folder)!r} ({reason(error)}); "
            "name another"
        ) from None


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
