"""Directory of a run (:class:`RunDir`): created, or reopened to continue, and locked while the run lives."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from psframe.config import strict_yaml, untrusted
from psframe.config.schema import to_yaml
from psframe.errors import UserError, reason
from psframe.record import checkpoint, comparison, metrics, run_lock, scaling, sealed, stopped, trace
from psframe.record.folder import Folder

LOCKED_S = 5  # seconds that a process may still hold a lock while the kernel ends it
VERSION = re.compile(r"[\w .,:;+()/-]{1,100}", re.ASCII)


@dataclass
class RunDir:
    """Directory of this run, on rank 0.

    Attributes
    ----------
    path : Path
    lock : TextIO
        The locked file; closing it releases the directory.
    saved : Saved or None
        The checkpoint to continue from.
    new : bool
        True if the directory was created for this run.
    notices : list of str
        Notices for the user: damaged checkpoints, lost records, runs passed over.
    planned : int or None
        ``train.epochs`` of the continued run before; None for a new one.
    begun : int
        Epochs done when this job began.
    """

    path: Path
    lock: TextIO = field(repr=False)
    saved: checkpoint.Saved | None = None
    new: bool = False
    notices: list[str] = field(default_factory=list)
    planned: int | None = None
    begun: int = 0

    @property
    def epoch(self) -> int:
        """Epochs done; 0 for a new run."""
        return self.saved.epoch if self.saved else 0

    @property
    def step(self) -> int:
        """Steps done."""
        return self.saved.step if self.saved else 0

    @property
    def cursor(self) -> int:
        """Samples of the next epoch done."""
        return self.saved.cursor if self.saved else 0


def open_run(resolved: dict[str, Any], layout: checkpoint.Layout) -> RunDir:
    """Create a run directory, or continue one as ``checkpoint.resume`` says. Rank 0 only.

    Parameters
    ----------
    resolved : dict
        The complete config.
    layout : Layout
        Layout of the parameters, which a checkpoint must match.

    Raises
    ------
    UserError
        Unwritable directory, a live run in it, a config that differs, no intact checkpoint, one of another model, or no
        epochs left.
    """
    base, name, resume = Path(resolved["record"]["dir"]), resolved["name"], resolved["checkpoint"]["resume"]
    folder, notices = named(resume), list[str]()
    try:
        if resume == "auto":
            folder = _newest_unfinished(base, name, resolved["train"]["epochs"], notices)
        run = _continue(folder, resolved, layout) if folder else _create(base, name, resolved)
    except OSError as error:
        where = error.filename or folder or base
        rule, fix = "record.dir must be a directory that can be written", "give record.dir=DIR"
        if resume != "none" and Path(where) != base:
            rule = "a run to continue must have regular files that can be read and written, and no links"
            fix = "mend that, or start anew with checkpoint.resume=none"
        raise UserError(f"{rule}, got {str(where)!r} ({reason(error)}); {fix}") from None
    run.notices += notices
    return run


def named(resume: str) -> Path | None:
    """Return the directory that ``checkpoint.resume`` names; None for none or auto. UserError if it holds no run."""
    if resume in ("none", "auto"):
        return None
    folder = Path(resume)
    if folder.is_symlink():
        folder = folder.resolve()  # trust links in the user's own path, but none in the run's folder
    if not (folder / "config.yaml").is_file():
        raise UserError(
            f"checkpoint.resume must be none, auto or the directory of a run, got {resume!r}, which holds no "
            "config.yaml; check the path"
        )
    return folder


def _create(base: Path, name: str, resolved: dict[str, Any]) -> RunDir:
    base.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        path = base / (f"{name}-{stamp}-{attempt}" if attempt else f"{name}-{stamp}")
        try:
            path.mkdir()
            break
        except FileExistsError:
            continue  # another run started in this second
    lock = run_lock.take(path)
    (path / "checkpoints").mkdir()
    _put_config(path, resolved)
    return RunDir(path, lock, new=True)


def _put_config(path: Path, resolved: dict[str, Any]) -> None:
    """Write a config as it can be run again: a run that was continued is not the one that it continues."""
    keys = {**resolved["checkpoint"], "resume": "none"}
    sealed.put(path / "config.yaml", to_yaml({**resolved, "checkpoint": keys}))


def _newest_unfinished(base: Path, name: str, epochs: int, notices: list[str]) -> Path | None:
    for path in _runs(base, name, notices):
        # records may be ahead of the checkpoint, which is written asynchronously
        epoch = checkpoint.epoch_of(path / "checkpoints")
        done = metrics.last_epoch(path) if epoch is None else epoch
        if done < epochs and continues(path) and not stopped.is_marked(path):
            return path
    return None


def continues(path: Path) -> bool:
    """Return True if a run has a checkpoint to continue from, or has completed no epoch."""
    return checkpoint.epoch_of(path / "checkpoints") is not None or metrics.last_epoch(path) == 0


def newest(base: Path, name: str, since: float = 0.0, job: str = "") -> Path | None:
    """Return the directory of the run of ``name`` last started or continued, if not before ``since`` (a Unix time).

    With ``job``, that of this job; or one of no job: Open MPI's launcher keeps variables to its own host.
    """
    of_none = None
    for path in _runs(base, name, []):
        if _started(path) < since:
            break
        of = run_lock.job_of(path)
        if of == job or not job:
            return path
        if not of:
            of_none = of_none or path
    return of_none


def _runs(base: Path, name: str, notices: list[str]) -> Iterator[Path]:
    """Yield this user's runs of ``name``, last started or continued first; add other users' runs to ``notices``."""
    if not base.is_dir():
        return
    for path in sorted(base.iterdir(), key=lambda p: (_started(p), p.name), reverse=True):
        old = config_of(path) if path.is_dir() and not path.is_symlink() else None
        if old is not None and old.get("name") == name:
            if path.stat().st_uid == os.geteuid():
                yield path
            else:
                notices.append(
                    f"checkpoint.resume=auto passes over {str(path)!r}, which is another user's; to continue that one, "
                    f"give checkpoint.resume={path}"
                )


def _started(path: Path) -> float:
    try:
        return (path / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def config_of(path: Path) -> dict[str, Any] | None:
    """Return the resolved config of a run's folder; None if it is missing or damaged."""
    try:
        with Folder(path) as folder, folder.open("config.yaml") as file:
            data = untrusted.all_of(file, untrusted.CONFIG_BYTES, path)
        old = strict_yaml.load(data.decode(), "config.yaml")
    except (OSError, UnicodeDecodeError, UserError):
        return None
    return old if isinstance(old, dict) else None


def config_to_continue(path: Path, resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run that is to be continued; UserError if the new one differs where it may not."""
    old = config_of(path)
    if old is None:
        raise UserError(f"a run to continue must have a config, got {str(path / 'config.yaml')!r}, damaged; start anew")
    comparison.check_same(path, old, resolved)
    return old


def _continue(path: Path, resolved: dict[str, Any], layout: checkpoint.Layout) -> RunDir:
    lock = run_lock.take(path)
    old = config_to_continue(path, resolved)
    folder = path / "checkpoints"
    Folder(path, folder.name, make=True).close()
    with Folder(path) as opened:
        if opened.holds(trace.FILE):  # written in place, and only after an epoch: check now that it can be
            os.close(opened.open_fd(trace.FILE, os.O_RDWR))
    checkpoint.clear(folder)
    saved, notices = checkpoint.newest(folder, layout)
    if saved is None and metrics.last_epoch(path):
        raise UserError(
            f"a run to continue must have a checkpoint, got none in {str(folder)!r}; start anew with "
            "checkpoint.resume=none"
        )
    planned = old.get("train", {}).get("epochs") if isinstance(old.get("train"), dict) else None
    run = RunDir(path, lock, saved, notices=notices, planned=planned if isinstance(planned, int) else None)
    run.begun = run.epoch
    if run.epoch >= resolved["train"]["epochs"]:
        raise UserError(
            f"a continued run must have epochs left, got {str(path)!r} with {run.epoch} done of "
            f"{resolved['train']['epochs']}; raise train.epochs"
        )
    metrics.cut_back(path, run.epoch)
    stopped.clear(path)
    scaling.clear(path)
    if (recorded := metrics.last_epoch(path)) < run.epoch:
        run.notices.append(f"records are lost: those in {str(path)!r} end with epoch {recorded}, of {run.epoch} done")
    _put_config(path, {**resolved, "versions": _versions(old) or resolved.get("versions", {})})
    return run


def taken_over(path: Path, epoch: int, begun: int) -> RunDir:
    """Return the directory of a run whose rank 0 has died, for the rank that goes on after ``epoch`` epochs.

    Raises UserError if it cannot be written from this host, or another job has it.
    """
    try:
        for _ in range(LOCKED_S * 50):
            if not run_lock.is_live(path):
                break
            time.sleep(0.02)  # until the kernel has ended the process
        lock = run_lock.take(path)
        checkpoint.clear(path / "checkpoints")
        metrics.cut_back(path, epoch)
    except OSError as error:
        raise UserError(
            "the run directory must be writable for the rank that goes on in rank 0's place, got "
            f"{str(error.filename or path)!r} ({reason(error)}); put it on a disk that all hosts see, and continue "
            "with checkpoint.resume=auto"
        ) from None
    return RunDir(path, lock, begun=begun)


def _versions(old: dict[str, Any]) -> dict[str, str]:
    """Return the valid entries of the versions that a run started with; the file is untrusted."""
    versions = old.get("versions")
    items = versions.items() if isinstance(versions, dict) else ()
    return {k: v for k, v in items if all(isinstance(w, str) and VERSION.fullmatch(w) for w in (k, v))}


def durably(write: Callable[[Any], Any], run_dir: RunDir) -> Any:
    """Return ``write(run_dir.path)``; UserError if writing fails."""
    try:
        return write(run_dir.path)
    except OSError as error:
        fix = "free space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
        raise UserError(
            f"the run directory must stay writable, got {str(error.filename or run_dir.path)!r} ({reason(error)}); "
            f"{fix} and continue with checkpoint.resume=auto"
        ) from None
