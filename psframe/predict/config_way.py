"""Way to train that a config asks for (:func:`asked`), and the same without an exchange (:func:`alone`)."""

from collections.abc import Sequence
from typing import Any

from psframe import sync
from psframe.config import registry, schema
from psframe.config.placement_spec import REST, spelled_out
from psframe.config.schema import Config
from psframe.errors import UserError
from psframe.predict.exchange import COLLECTIVES
from psframe.predict.job import PACE_OF
from psframe.sync.async_ps import AsyncPS
from psframe.sync.backup_workers import BackupWorkers
from psframe.sync.base import Mode
from psframe.train.compute.parallel import pipeline
from psframe.train.plan import without_ranks

#: a measured step exchanges nothing, and is the same in every mode
ALONE = (
    "sync={mode: allreduce}",
    "collective={name: 'null'}",
    "parallel={}",
    "train.reproducible=none",
    "train.global_batch=null",
)
MODES = ("sync_ps", "allreduce", *(name for name in PACE_OF if " " not in name))


def asked(path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the fields of :class:`psframe.predict.job.ExchangePlan` that a config gives, and more for the command.

    Raise UserError if it cannot be trained, or not predicted.
    """
    config = schema.read(path, overrides, "auto")  # the collective as it is given: it depends on the nodes
    mode = sync.make(registry.bind("sync", sync.TABLE, config.sync, "mode", sync.Common))
    _check(config, mode)
    without_ranks.check(path, overrides)
    cut, in_blocks = config.parallel, config.train.reproducible == "any_workers"
    return {
        "model": config.model["name"],
        "mode": _name(config, mode),
        "server": mode.traits.server,
        "n_servers": mode.traits.n_servers,
        **_periods(mode),
        "blocks": config.train.blocks if in_blocks else 0,
        "samples": (config.train.global_batch or 0) if in_blocks else 0,
        "stages": cut.pipeline,
        "shards": cut.model,
        "micro_batches": pipeline.wanted(cut),
        "collective": config.collective["name"],
        "compression": config.collective.get("compression", "none"),
        "reproducible": config.train.reproducible,
        "placement": str(spelled_out(config.placement.parameters.get(REST, config.placement.parameters))["name"]),
    }


def alone(path: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of the same config whose workers exchange nothing; a batch is a block's, if it has these."""
    train = schema.read(path, overrides, "auto").train
    batch = -(-(train.global_batch or 1) // train.blocks)
    is_in_blocks = train.reproducible == "any_workers"
    return [*overrides, *ALONE, *([f"train.batch_size={batch}"] if is_in_blocks else [])]


def check_meets(meets: str) -> None:
    """Raise UserError if samples meet those of other workers within layers."""
    if meets == "workers":
        raise UserError(
            "psframe.predict knows no exchange within layers, got BatchNorm with over=workers; give over=batch, or "
            "measure by psframe.compare"
        )


def _name(config: Config, mode: Mode) -> str:
    """Return the mode's name, with what of its keys gives it another pace."""
    words = [str(config.sync["mode"])]
    if isinstance(mode, AsyncPS):
        words = ["bounded"] * mode.bounded + ["compensated"] * bool(mode.compensation) + words
    elif words == ["easgd"] and mode.traits.consistency == "period":
        words = ["synchronous", *words]
    return " ".join(words)


def _periods(mode: Mode) -> dict[str, int]:
    """Return the steps of a worker between two exchanges, and between two pulls."""
    if isinstance(mode, AsyncPS):
        return {"every": mode.push_every, "pull_every": mode.pull_every}
    counts = [getattr(mode, key, 1) for key in ("every", "period")]
    every = max(count for count in counts if isinstance(count, int))
    return {"every": every, "pull_every": every}


def _check(config: Config, mode: Mode) -> None:
    name = config.sync["mode"]
    if name not in MODES or isinstance(mode, BackupWorkers):
        how = " with staleness 0" if name == "async_ps" else " with backup workers" if name in MODES else ""
        raise UserError(
            f"psframe.predict knows sync.mode {', '.join(MODES)}, and no backup workers, got {name}{how}; give one of "
            "them, or measure by psframe.compare"
        )
    if config.train.precision != "float32":
        raise UserError(
            "psframe.predict knows how fast CPUs compute in float32 alone, got "
            f"train.precision={config.train.precision}; give float32, or measure by psframe.compare"
        )
    if config.parallel.recompute or config.parallel.convolutions == "data":
        key = "recompute=true" if config.parallel.recompute else "convolutions=data"
        raise UserError(
            f"psframe.predict knows networks that are cut by layers and channels alone, got parallel.{key}; leave that "
            "out, or measure by psframe.compare"
        )
    collective = config.collective["name"]
    if collective != "auto" and collective not in COLLECTIVES:
        raise UserError(
            f"psframe.predict knows collective {', '.join(COLLECTIVES)}, got {collective}; give one of them"
        )
