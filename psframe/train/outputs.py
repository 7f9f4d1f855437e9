"""Outputs of a run (:class:`Outputs`): directory, checkpoints, trace, usage, view; null objects for what is absent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from psframe.record.run_dir import RunDir
from psframe.record.tensorboard import Board
from psframe.record.trace import UNTRACED, Trace
from psframe.record.usage import Sample, Usage
from psframe.record.view import View
from psframe.train.callbacks.calls import Calls
from psframe.train.checkpointer import Checkpointer
from psframe.train.elastic.scaling import NoScaling, Scaling


class NoBoard:
    """Board of a run without TensorBoard, or of a rank that does not write it."""

    def epoch(self, record: Mapping[str, Any]) -> None: ...

    def steps(self, lines: Iterable[Mapping[str, Any]]) -> None: ...


class NoUsage:
    """Usage of a run that samples no resources."""

    zero = before_s = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...

    def take(self, offset_s: float = 0.0) -> list[Sample]:
        return []


@dataclass
class Outputs:
    """Outputs of a run; all but ``trace`` and ``usage`` are active on rank 0 only.

    Attributes
    ----------
    run_dir, checkpointer : RunDir, Checkpointer, or None
        None on other ranks, and for a run that writes nothing.
    """

    run_dir: RunDir | None = None
    checkpointer: Checkpointer | None = None
    view: View = field(default_factory=lambda: View(0, 0, quiet=True))
    trace: Trace = UNTRACED
    usage: Usage | NoUsage = field(default_factory=NoUsage)
    board: Board | NoBoard = field(default_factory=NoBoard)
    calls: Calls = field(default_factory=Calls)
    scaling: Scaling | NoScaling = field(default_factory=NoScaling)
