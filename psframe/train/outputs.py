"""Outputs of a run (:class:`Outputs`): directory, checkpoints, trace, usage, view; null objects for what is absent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psframe.record.run_dir import RunDir
from psframe.record.tensorboard import Board
from psframe.record.trace import UNTRACED, Trace
from psframe.record.usage import Sample, Usage
from psframe.record.view import View
from psframe.train.checkpointer import Checkpointer, ModelState


class NoBoard:
    """Board of a run without TensorBoard, or of a rank that does not write it."""

    def epoch(self, record: Mapping[str, Any]) -> None: ...

    def steps(self, lines: Iterable[Mapping[str, Any]]) -> None: ...


class NoUsage:
    """Usage of a run that samples no resources."""

    zero = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...

    def take(self, offset_s: float = 0.0) -> list[Sample]:
        return []


class NoCheckpointer:
    """Checkpointer of a rank that writes no checkpoints."""

    asked = failed = False

    def due(self) -> bool:
        return False

    def save(self, model_state: ModelState, rows: Sequence[np.ndarray], epoch: int, step: int, cursor: int) -> None: ...

    def take(
        self, model_state: ModelState, rows: Sequence[np.ndarray], epoch: int, step: int, cursor: int = 0
    ) -> None: ...

    def start(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...

    @contextmanager
    def closing(self, last: bool) -> Iterator[None]:
        yield


@dataclass
class Outputs:
    """Outputs of a run; ``run_dir``, ``checkpointer``, ``view`` and ``board`` are active on rank 0 only.

    Attributes
    ----------
    run_dir : RunDir or None
        None on other ranks, and for a run that writes nothing.
    """

    run_dir: RunDir | None = None
    checkpointer: Checkpointer | NoCheckpointer = field(default_factory=NoCheckpointer)
    view: View = field(default_factory=lambda: View(0, 0, quiet=True))
    trace: Trace = UNTRACED
    usage: Usage | NoUsage = field(default_factory=NoUsage)
    board: Board | NoBoard = field(default_factory=NoBoard)
