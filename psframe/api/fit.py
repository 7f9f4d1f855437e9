"""Training from a script or a notebook (:func:`fit`)."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psframe.api import notebook, objects, script
from psframe.api.arrays import Arrays
from psframe.api.channel import Channel
from psframe.api.job import Answers, Job
from psframe.api.live import Live
from psframe.api.request import Request
from psframe.api.runs import Run
from psframe.api.watched import RankError, Watched
from psframe.cluster import mpirun as launchers
from psframe.config import schema, tuned
from psframe.errors import UserError
from psframe.record import log, onward
from psframe.record.log import LOG
from psframe.train.callbacks import calls


def fit(
    config: str | Path | Mapping[str, Any] | None = None,
    *overrides: str,
    ranks: int = 4,
    data: Any = None,
    test_data: Any = None,
    callbacks: Sequence[Any] = (),
    mpirun: str | None = None,
    quiet: bool = False,
    log_level: str = "warning",
    **sections: Any,
) -> Run:
    """Train a network on ranks that this call starts, and return the run.

    Under ``mpirun``, every rank of the script must call it; it then trains on these ranks, and ``ranks`` does not
    count.

    Parameters
    ----------
    config : str, Path or mapping, optional
        A YAML file, or its content. A value may be an object of the script where YAML has a name: a function or class
        for a model, dataset, optimizer, mode or collective, or for ``build`` of ``model: torch``.
    *overrides : str
        ``key.path=value``, as at the prompt.
    ranks : int
        Ranks to start on this machine.
    data, test_data : (images, labels), optional
        Samples in place of ``dataset``: arrays, or what is cut and has a shape as one, (n, C, H, W) or (n, H, W), and
        integer labels (n,) from 0. Ranks read them from the script's memory, into one copy for all. Keys of
        ``dataset`` are ``n_classes``, ``sequences``, ``crop``, ``flip``, ``mean`` and ``std``.
    callbacks : sequence
        Objects as :class:`psframe.Callback`. They run on rank 0, as copies whose attributes come back at the end.
    mpirun : str, optional
        Launcher and its flags, such as ``mpirun --oversubscribe``.
    quiet : bool
        True to show no progress.
    log_level : {'debug', 'info', 'warning', 'error'}
        Least level of the lines that ranks show on stderr; the run's ``log.jsonl`` has more.
    **sections
        Sections of the config, over those of ``config``: ``model=my_layers, train={"epochs": 3}``. ``model`` may be a
        list of layers or a class of ``torch.nn.Module``; ``optimizer`` one of ``psframe.optim``.

    Returns
    -------
    Run

    Raises
    ------
    UserError
        A mistake in the config, the data or an object, or a callback that raised.
    RankError
        Another error on a rank, with its traceback, or a rank that died.
    KeyboardInterrupt
        After Ctrl-C; the ranks have left together, and written a checkpoint if the config keeps any.
    """
    arrays = None if data is None and test_data is None else Arrays(data, test_data)
    calls.check(callbacks)
    if log_level not in log.LEVELS:
        raise UserError(f"log_level must be one of {', '.join(log.LEVELS)}, got {log_level!r}; give log_level='info'")
    content, given = objects.named(_content(config, sections, arrays))
    asked = Request(content, overrides, given, arrays, callbacks, quiet, log_level)
    if any(name in os.environ for name in launchers.LAUNCHED):
        from psframe.api.here import train

        path = train(asked)
    else:
        schema.read(content, tuned.without_word(overrides))  # most mistakes are told before ranks are started
        path = _started(asked, _launcher(mpirun, ranks))
    path = path.resolve()
    again = {"ranks": ranks, "callbacks": callbacks, "mpirun": mpirun, "quiet": quiet, "log_level": log_level}
    return Run(path, objects=given, given={**again, **({"data": data, "test_data": test_data} if arrays else {})})


def _content(config: str | Path | Mapping[str, Any] | None, sections: dict[str, Any], arrays: Arrays | None) -> Any:
    """Return the content of a config with ``sections`` over it."""
    if config is not None and not isinstance(config, str | Path | Mapping):
        raise UserError(f"a config must be a path, or keys and values, got {type(config).__name__}; give one of these")
    below = dict(config) if isinstance(config, Mapping) else schema.content(str(config)) if config else {}
    sections = {key: value for key, value in sections.items() if value is not None}
    if arrays:
        sections["dataset"] = _dataset(below.pop("dataset", None), sections.get("dataset"))
    content = schema.over(below, sections)
    content.setdefault("name", "fit")
    return content


def _dataset(before: Any, asked: Any) -> dict[str, Any]:
    """Return the section of a script's arrays, with the keys ``asked``, or those of a run on arrays that goes on."""
    name = f"{script.__name__}:dataset"
    if asked is None and isinstance(before, Mapping) and before.get("name") == name:
        return dict(before)
    if not isinstance(asked or {}, Mapping) or "name" in (asked or {}):
        raise UserError(f"a run has one dataset, got data and dataset={asked!r}; give one of them")
    return {"name": name, **(asked or {})}


def _live(quiet: bool) -> Live:
    if quiet or not notebook.is_here():
        return Live(quiet)
    return notebook.Curve()


def _launcher(mpirun: str | None, ranks: int) -> list[str]:
    if isinstance(ranks, bool) or not isinstance(ranks, int | np.integer) or not 1 <= ranks <= launchers.MAX_RANKS:
        raise UserError(f"ranks must be a number of ranks, got {ranks!r}; give ranks=4")
    return [*launchers.launcher(mpirun), "-n", str(ranks)]


def _started(asked: Request, launcher: Sequence[str]) -> Path:
    """Train on new ranks; return the run's folder."""
    in_script, on_rank = (
        [callback for callback in asked.callbacks if bool(getattr(callback, "in_script", False)) == stays]
        for stays in (True, False)
    )
    sent = objects.pickled("an object of the script", asked.objects)
    sent_callbacks = objects.pickled("a callback", on_rank)
    live, arrays = _live(asked.quiet), asked.arrays
    watched, facts = Watched(in_script, live, lambda: job.leave()), arrays.facts if arrays else None

    def fail(rank: Channel, message: str) -> None:
        job.mute()
        watched.fail(rank, message)

    path = [os.path.abspath(folder) for folder in sys.path]
    of_job = (asked.content, list(asked.overrides), path, sys.argv, sent, facts, asked.log_level)
    answers: Answers = {
        "job": lambda rank: rank.send(of_job),
        "callbacks": lambda rank: rank.send(sent_callbacks),
        "read": lambda rank, *part: rank.send(arrays.read(*part) if arrays else None),
        "begun": watched.begun,
        "step": watched.step,
        "epoch": watched.epoch,
        "end": watched.end,
        "refuse": watched.refuse,
        "fail": fail,
    }
    job = Job(launcher, answers)
    try:
        status = job.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_left(watched)) from None
    finally:
        live.close()
        objects.restore(on_rank, watched.states)
    return _ended(watched, job, status)


def _left(watched: Watched) -> str:
    """Return the message on ranks that Ctrl-C has ended: where the run is, and what was wrong, as with a full disk."""
    left = onward.of_left(watched.path) if watched.path else "no run has begun"
    wrong = watched.refused or watched.failed
    return f"{wrong}; {left}" if wrong else left


def _ended(watched: Watched, job: Job, status: int) -> Path:
    """Return the folder of a run; raise what has ended it before its end, if anything has."""
    if watched.error:
        if watched.path:
            LOG.warning(onward.of_left(watched.path))
        raise watched.error
    if watched.refused:
        raise UserError(watched.refused)
    if watched.failed or status or watched.path is None:
        raise RankError(watched.failed or "; ".join(job.said) or f"a rank has died: mpirun ended with status {status}")
    return watched.path
