"""The word ``tuned=auto`` of a training command (:func:`applied`): settings that tuning found fastest here."""

from collections.abc import Sequence
from typing import Any

from psframe import sync
from psframe.cluster import affinity
from psframe.cluster.cluster import Cluster
from psframe.cluster.communicators import mpi_name
from psframe.config import tuned
from psframe.config.schema import Source, resolve
from psframe.config.tuned import Tuned
from psframe.errors import UserError
from psframe.memory import topology
from psframe.record import tuned as cache
from psframe.record.view import say
from psframe.train.compute import any_workers
from psframe.train.plan import sections
from psframe.train.plan.judged import roles_of

VALUES = ("auto", "none")


def applied(cluster: Cluster, source: Source, overrides: Sequence[str]) -> list[str]:
    """Return overrides with the word without it, and with those of a result that fits. All ranks must call.

    Raises AgreedError for another value than ``auto`` and ``none``.
    """
    words = [override.removeprefix(tuned.WORD) for override in overrides if override.startswith(tuned.WORD)]
    others = tuned.without_word(overrides)
    n_cores = affinity.n_cores(cluster, topology.read("/", environ={}))
    found: list[str] = cluster.run_on_root(lambda: _settings(source, others, cluster.sizes, words[-1], n_cores))
    return [*others, *found]


def _settings(source: Source, overrides: Sequence[str], sizes: tuple[int, ...], word: str, n_cores: int) -> list[str]:
    if word not in VALUES:
        raise UserError(f"tuned must be auto or none, got {word!r}; give tuned=auto")
    if word == "none":
        return []
    resolved = _resolved(source, overrides, sizes)
    n_workers, whole = _step(resolved, sizes)
    here = Tuned(topology.read("/", environ={}).title, mpi_name(), len(sizes), n_cores, sum(sizes), whole)
    found = cache.find(tuned.key(resolved, tuned.set_keys(source, overrides)), here)
    if found is None or not _trains_the_same(found, source, overrides, sizes, n_workers):
        say(
            f"tuned=auto: nothing was tuned for this config on {here.n_ranks} rank(s) of this machine; "
            f"psframe tune CONFIG --ranks {here.n_ranks} does"
        )
        return []
    say(f"tuned=auto: {' '.join(found.overrides)} ({found.samples_per_s:,.0f} samples/s)")
    return found.overrides


def _resolved(source: Source, overrides: Sequence[str], sizes: tuple[int, ...]) -> dict[str, Any]:
    return sections.resolve(source, overrides, "hierarchical" if len(sizes) > 1 else "shared")[0]


def _step(resolved: dict[str, Any], sizes: tuple[int, ...]) -> tuple[int, int]:
    """Return the workers, and the samples of a step."""
    config, mode = resolve(dict(resolved)), sync.make(sections.choice(resolved, "sync"))
    n_workers = roles_of(config, mode.traits, sizes).n_workers
    return n_workers, any_workers.sampler(1 << 62, n_workers, config.train).samples_per_step


def _trains_the_same(
    found: Tuned, source: Source, overrides: Sequence[str], sizes: tuple[int, ...], n_workers: int
) -> bool:
    """True if a step with the result has as many samples, and as many workers where they count."""
    try:
        workers, samples = _step(_resolved(source, [*overrides, *found.overrides], sizes), sizes)
    except UserError:  # of a damaged file, whose settings the user has not written
        return False
    same_workers = found.n_workers is None or workers == n_workers == found.n_workers
    return samples == found.global_batch and same_workers
