"""Way to train that a config asks for (:func:`asked`), and the same without an exchange (:func:`alone`)."""

from collections.abc import Sequence
from typing import Any

from psframe import collectives, sync
from psframe.collectives import compression
from psframe.config import registry, schema
from psframe.config.schema import Config
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.predict.job import PACES
from psframe.sync.backup_workers import BackupWorkers
from psframe.sync.base import Mode
from psframe.train.compute.parallel import pipeline

#: a measured step exchanges nothing, and is the same in every mode
ALONE = (
    "sync={mode: allreduce}",
    "collective={name: 'null'}",
    "parallel={}",
    "train.reproducible=none",
    "train.global_batch=null",
)
MODES = ("sync_ps", "allreduce", *(name for name in PACES if " " not in name))


def asked(path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the fields of :class:`psframe.predict.job.ExchangePlan` that a config gives, and more for the command.

    Raise UserError if it cannot be predicted.
    """
    config = schema.read(path, overrides, "auto")
    mode = sync.make(registry.bind("sync", sync.TABLE, config.sync, "mode"))
    _check(config, mode)
    collective = config.collective["name"]
    if collective != "auto":  # checks its keys: the measured step uses another collective
        registry.bind("collective", collectives.TABLE, config.collective)
    codec = config.collective.get("compression", "none")
    if codec != "none":
        compression.codec_maker(codec, Allocator())
    cut = config.parallel
    return {
        "model": config.model["name"],
        "mode": _name(config, mode),
        "server": mode.traits.server,
        "n_servers": mode.traits.n_servers,
        "every": _every(mode),
        "blocks": config.train.blocks if config.train.reproducible == "any_workers" else 0,
        "stages": cut.pipeline,
        "shards": cut.model,
        "micro_batches": pipeline.wanted(cut),
        "collective": collective,
        "compression": codec,
        "reproducible": config.train.reproducible,
        "placement": str(config.placement.parameters["name"]),
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
    """Return the mode's name, by its pace."""
    is_periodic = config.sync["mode"] == "easgd" and mode.traits.consistency == "period"
    return f"synchronous {config.sync['mode']}" if is_periodic else str(config.sync["mode"])


def _every(mode: Mode) -> int:
    """Return the steps of a worker between two exchanges."""
    counts = [getattr(mode, key, 1) for key in ("every", "period", "pull_every", "push_every")]
    return max(count for count in counts if isinstance(count, int))


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
    if config.parallel.recompute:
        raise UserError(
            "psframe.predict knows no pass that is computed twice, got parallel.recompute; leave it out, or measure by "
            "psframe.compare"
        )
    collective = config.collective["name"]
    if collective != "auto" and collective not in collectives.TABLE:
        raise UserError(f"psframe.predict knows the collectives of psframe, got {collective}; give one of those")
