"""The word ``tuned=auto`` of a training command (:func:`applied`): settings that tuning found fastest here."""

from collections.abc import Sequence

from psframe import sync
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

WORD = "tuned="
VALUES = ("auto", "none")


def applied(cluster: Cluster, source: Source, overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the word, and with those of a result that fits. All ranks must call.

    Raises AgreedError for another value than ``auto`` and ``none``.
    """
    words = [override.removeprefix(WORD) for override in overrides if override.startswith(WORD)]
    others = [override for override in overrides if not override.startswith(WORD)]
    if not words:
        return others
    found: list[str] = cluster.run_on_root(lambda: _settings(source, others, cluster.sizes, words[-1]))
    return [*others, *found]


def _settings(source: Source, overrides: Sequence[str], sizes: tuple[int, ...], word: str) -> list[str]:
    if word not in VALUES:
        raise UserError(f"tuned must be auto or none, got {word!r}; give tuned=auto")
    if word == "none":
        return []
    default = "hierarchical" if len(sizes) > 1 else "shared"
    resolved, _ = sections.resolve(source, overrides, default)
    config = resolve(dict(resolved))
    mode = sync.make(sections.choice(resolved, "sync"))
    n_workers = roles_of(config, mode.traits, sizes).n_workers
    whole = any_workers.sampler(1 << 62, n_workers, config.train).whole
    here = Tuned(topology.read("/", environ={}).title, mpi_name(), len(sizes), sum(sizes), whole, [], 0.0)
    found = cache.find(tuned.key(resolved, tuned.set_keys(source, overrides)), here)
    if found is None:
        say(
            f"tuned=auto: nothing was tuned for this config on {here.n_ranks} rank(s) of this machine; "
            f"psframe tune CONFIG --ranks {here.n_ranks} does"
        )
        return []
    say(f"tuned=auto: {' '.join(found.overrides) or 'the config as it is'} ({found.samples_per_s:,.0f} samples/s)")
    return found.overrides
