"""Incident file of a run (:func:`write`): what all ranks of a node did when something went wrong.

``incident-1.json`` is the first one of node 0, ``incident-1.node-2.json`` that of node 2. It is written once, and is
bounded in size.
"""

import json
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from psframe.config import untrusted
from psframe.record.folder import Folder

FILE = re.compile(r"incident-([1-9][0-9]{0,3})(?:\.node-([1-9][0-9]{0,5}))?\.json", re.ASCII)
FORMAT = 1  #: of the file
MOST_BYTES = 64 << 20  # of a file that is read
EVENTS = 200_000  # of all ranks of a node together
MOST = 1000  # files in a folder
SPARE = ("/tmp", "/dev/shm")  #: folders for what no disk of the run takes, after the working directory


def events_of(n_ranks: int) -> int:
    """Return the number of events that are kept of each of a node's ranks."""
    return max(16, min(4096, EVENTS // n_ranks))


def write(folders: Sequence[Path], content: dict[str, Any]) -> str:
    """Write an incident to the first of ``folders`` that takes it; return its path, "" if none does."""
    text = json.dumps({"format": FORMAT, **content}, allow_nan=False)
    node = content["facts"].get("node", 0)
    for path in folders:
        with suppress(OSError), Folder.chosen(path) as folder:
            name = _free(folder.names(), node)
            with folder.replaced(name) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            return str(path / name)
    return ""


def _free(names: Sequence[str], node: int) -> str:
    taken = {match[0] for name in names if (match := FILE.fullmatch(name))}
    for number in range(1, MOST):
        name = f"incident-{number}.node-{node}.json" if node else f"incident-{number}.json"
        if name not in taken:
            return name
    raise FileExistsError


def found(folder: Path) -> list[list[Path]]:
    """Return the incidents of a run, the oldest first, each as the files of its nodes. Raises OSError."""
    with Folder.chosen(folder) as opened:
        matches = [match for name in opened.names() if (match := FILE.fullmatch(name))][:MOST]
    numbers = sorted({int(match[1]) for match in matches})
    return [sorted((folder / match[0] for match in matches if int(match[1]) == number), key=node) for number in numbers]


def aside(run: Path) -> list[Path]:
    """Return the incidents of a run that lie where a keeper writes if the run's own disk is full; only this user's."""
    folders = dict.fromkeys([os.path.dirname(os.path.abspath(run)), os.getcwd(), *SPARE, tempfile.gettempdir()])
    places = [Path(folder) for folder in folders if not _is_same(folder, run)]
    kept = []
    for path in (path for folder in places for path in _of_folder(folder)):
        with suppress(OSError, ValueError, RecursionError, LookupError, TypeError):
            if path.lstat().st_uid != os.geteuid():
                continue
            content = untrusted.of_json(untrusted.content(path, MOST_BYTES))
            if os.path.samefile(content["facts"]["run"], run):
                kept.append(path)
    return kept


def _is_same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _of_folder(folder: Path) -> list[Path]:
    try:
        return [path for files in found(folder) for path in files]
    except OSError:
        return []


def node(path: Path) -> int:
    """Return the number of the node that an incident's file is of."""
    match = FILE.fullmatch(path.name)
    return int(match[2] or 0) if match else 0
