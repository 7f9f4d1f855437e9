"""Record of a group's collectives (:class:`Record`): calls, bytes and waits by rank, in a file."""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psframe.memory import arrays, audit
from psframe.record.folder import chosen_output
from psframe.torch.moves import KINDS
from psframe.torch.types import type_name

#: environment variables: the folder of records; and the placement of a group's memory, which they check
FOLDER, PLACEMENT = "PSFRAME_TORCH_RECORD", "PSFRAME_TORCH_PLACEMENT"


class Record:
    """What a rank's collectives were, and how long it waited for them.

    Parameters
    ----------
    folder : str
        Each group of each rank writes a file of its own there, ``torch-GROUP-rank-RANK.json``, when it is destroyed.
    group : str
    ranks : sequence of int
    me : int
    """

    def __init__(self, folder: str, group: str, ranks: Sequence[int], me: int):
        self.path = Path(folder) / f"torch-{group}-rank-{ranks[me]:05}.json"
        self.about = {"group": group, "rank": ranks[me], "ranks": list(ranks)}
        self.rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])

    @classmethod
    def asked(cls, group: str, ranks: Sequence[int], me: int) -> "Record | None":
        """Return the record that the environment asks for, if it does."""
        folder = os.environ.get(FOLDER)
        return cls(folder, group, ranks, me) if folder else None

    def ended(self, work: Any) -> None:
        """Count a collective that has ended."""
        kind, number, _, _, n_bytes, _ = work.move.note
        row = self.rows[KINDS[kind], type_name(number) if n_bytes else ""]
        row[0] += 1
        row[1] += n_bytes

    def waited(self, work: Any, seconds: float) -> None:
        """Count a wait for a collective."""
        row = self.rows[KINDS[work.move.note[0]], type_name(work.move.note[1]) if work.move.note[4] else ""]
        row[2] += seconds
        row[3] = max(row[3], seconds)

    def write(self, memory: np.ndarray) -> None:
        """Write the file, with the pages of the group's memory by NUMA node."""
        placement, site = arrays.placed(os.environ.get(PLACEMENT) or "default")
        pages = audit.count([("exchange", memory)], {"exchange": placement.policy(site, True)})
        names = ("calls", "bytes", "waited_s", "longest_wait_s")
        rows = [
            {"collective": kind, "dtype": dtype, **dict(zip(names, row, strict=True))}
            for (kind, dtype), row in sorted(self.rows.items())
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"bench": "torch_record", **self.about, "collectives": rows, "pages": pages["exchange"].to_plain()},
            indent=1,
        )
        with chosen_output(self.path) as file:
            file.write(text + "\n")
