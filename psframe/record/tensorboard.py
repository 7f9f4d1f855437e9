"""TensorBoard event files (:class:`Board`), by tensorboardX: metrics.jsonl by epoch, and steps.jsonl by step.

Writes are synchronous, not on a thread of tensorboardX, so that errors propagate and a flush is complete. Steps are a
separate run in TensorBoard, because a continued run replaces later points per run.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from psframe.record.folder import Folder

FOLDER = "tensorboard"
SCHEME = "psframe"  # URL scheme by which tensorboardX opens files through _Files
#: plotted keys of an epoch's record, by TensorBoard group
GROUPS = {
    "quality": ("loss", "test_loss", "accuracy"),
    "seconds": ("epoch_s", "data_s", "compute_s", "exchange_s", "update_s", "wait_s", "eval_s", "checkpoint_s"),
    "speed": ("samples_per_s",),
    "bytes": ("bytes_read", "bytes_written", "bytes_sent", "bytes_moved"),
    "schedule": ("lr",),
    "staleness": ("staleness_p50", "staleness_p99", "dropped"),
}


class _Files:
    """Opener of a run's event files that follows no link, unlike tensorboardX."""

    def __init__(self, run: Path, folder: str):
        self.run, self.folder = run, folder

    def open(self, path: str) -> IO[bytes]:
        """Create a file; OSError if it exists or its folder is a link."""
        with Folder(self.run, *self.folder.split("/"), make=True) as folder:
            return folder.open(path.removeprefix(f"{SCHEME}:"), "xb")


class Board:
    """Event files of a run, on rank 0, created at the first write.

    Parameters
    ----------
    run : Path
        The run's directory.
    epoch, step : int
        Epochs and steps done; later ones in older files are replaced.
    """

    def __init__(self, run: Path, epoch: int, step: int):
        self.run, self.done = run, {FOLDER: epoch, f"{FOLDER}/steps": step}
        self.writers: dict[str, Any] = {}

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write an epoch's record; numbers that it has not (None), and metrics that are lists, are left out."""
        values = {f"{group}/{key}": record.get(key) for group, keys in GROUPS.items() for key in keys}
        metrics = record.get("metrics", {}).items()
        values |= {f"metrics/{label}": value for label, value in metrics if not isinstance(value, list)}
        self._write(FOLDER, [(record["epoch"], values)])

    def steps(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write the lines of steps.jsonl of an epoch."""
        points = [(line["step"], {f"step/{key}": line[key] for key in ("loss", "lr")}) for line in lines]
        self._write(f"{FOLDER}/steps", points)

    def _write(self, folder: str, points: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Write numbers by tag at each step, and flush; OSError if writing fails."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        writer, now = self._writer(folder), time.time()
        for step, numbers in points:
            values = [Summary.Value(tag=tag, simple_value=float(n)) for tag, n in numbers.items() if n is not None]
            writer.write_event(Event(wall_time=now, step=step, summary=Summary(value=values)))
        writer.flush()

    def _writer(self, folder: str) -> Any:
        """Return the writer of a folder; a new one starts with an event that voids later steps of older files."""
        if folder not in self.writers:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.record_writer import register_writer_factory

            register_writer_factory(SCHEME, _Files(self.run, folder))
            writer = EventsWriter(f"{SCHEME}:events", f".{os.getpid()}")
            begun = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self.done[folder] + 1, session_log=begun))
            self.writers[folder] = writer
        return self.writers[folder]
