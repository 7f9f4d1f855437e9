"""Training of a script that was itself started by mpirun, on its ranks (:func:`train`)."""

from pathlib import Path

from psframe.api import script
from psframe.api.arrays import dataset
from psframe.api.request import Request
from psframe.cluster import begin

begin.over_ranks()

from psframe.cluster import communicators  # noqa: E402
from psframe.cluster.cluster import AgreedError  # noqa: E402
from psframe.cluster.command import give_up  # noqa: E402
from psframe.cluster.joining import join  # noqa: E402
from psframe.record import log  # noqa: E402
from psframe.train import command  # noqa: E402


def train(asked: Request) -> Path:
    """Train on all ranks, and return the run's folder. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, for a user's mistake. Any other error ends the job.
    SystemExit
        On every rank, after a signal.
    """
    log.level(asked.log_level)
    arrays = asked.arrays
    script.give({**asked.objects, **({"dataset": dataset(arrays.facts, arrays.read)} if arrays else {})})
    try:
        with communicators.freed():
            run, stopped = command.train(join(), asked.content, asked.overrides, asked.quiet, asked.callbacks)
            folder = run.outputs.run_dir
            path = Path(run.cluster.run_on_root_in_time(lambda: str(folder.path) if folder else ""))
            if stopped:
                command.tell(run, stopped, asked.quiet)
            run.cluster.close()
        if stopped and stopped.number:
            raise SystemExit(128 + stopped.number)
        return path
    except (AgreedError, SystemExit):
        raise
    except BaseException as error:  # the other ranks wait for this one
        give_up(error)
        raise
