"""Training of a script that was itself started by mpirun, on its ranks (:func:`train`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from psframe.api import script
from psframe.api.arrays import Arrays, dataset
from psframe.cluster import begin

begin.over_ranks()

from psframe.cluster.cluster import AgreedError, join  # noqa: E402
from psframe.cluster.command import give_up  # noqa: E402
from psframe.train import command  # noqa: E402


def train(
    content: Mapping[str, Any],
    overrides: Sequence[str],
    given: Mapping[str, Any],
    arrays: Arrays | None,
    callbacks: Sequence[Any],
    quiet: bool,
) -> Path:
    """Train on all ranks, and return the run's folder. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, for a user's mistake. Any other error ends the job.
    SystemExit
        On every rank, after a signal.
    """
    script.give({**given, **({"dataset": dataset(arrays.facts, arrays.read)} if arrays else {})})
    try:
        cluster = join()
        run, stopped = command.train(cluster, content, overrides, quiet, callbacks)
        if stopped and stopped.number:
            command.tell(run, stopped, quiet)
            raise SystemExit(128 + stopped.number)
        path = run.outputs.run_dir.path if run.outputs.run_dir else None
        return Path(run.cluster.run_on_root_in_time(lambda: str(path)))
    except (AgreedError, SystemExit):
        raise
    except BaseException as error:  # the other ranks wait for this one
        give_up(error)
        raise
