"""Results of tuning (:class:`Tuned`) and the configs they are for: the keys that tuning may change, and all others."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from psframe.config import schema, short
from psframe.config.paths import at, flat
from psframe.config.placement_spec import ROLES

#: keys that tuning may change
KEYS = (
    "sync.server",
    "sync.servers",
    "collective.name",
    "collective.reducers",
    "collective.bucket_bytes",
    "train.threads",
    "affinity",
    "parallel.micro_batches",
    "parallel.schedule",
    *(f"placement.{role}.name" for role in ROLES),
)
#: what hardly makes a step faster or slower
BESIDE = ("name", "versions", "schedule", "record", "checkpoint", "fault", "train.epochs", "train.seed", "train.stop")
BATCH = "train.batch_size"
WORD = "tuned="  # of a training command, before auto or none
FOLDER = "tuned"  # in the user's cache


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fastest way to train a config on a machine with some number of ranks.

    Attributes
    ----------
    machine, mpi : str
    n_nodes, cores, n_ranks, global_batch : int
        ``cores``: of a node, that the ranks may use.
    overrides : list of str
        Settings of the way, as a command line has them.
    samples_per_s : float
    n_workers : int or None
        Workers of the way, where another number than the config's would train otherwise.
    """

    machine: str
    mpi: str
    n_nodes: int
    cores: int
    n_ranks: int
    global_batch: int
    overrides: list[str] = []
    samples_per_s: float = 0.0
    n_workers: int | None = None

    def name(self, config_key: str) -> str:
        """Return the name of its file."""
        place = (self.machine, self.mpi, self.n_nodes, self.cores, self.n_ranks, self.global_batch)
        return f"{_digest((config_key, *place))}.json"


def without_word(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without ``tuned=...``, which ranks heed (:mod:`psframe.train.plan.tuned`)."""
    return [override for override in overrides if not override.startswith(WORD)]


def key(resolved: Mapping[str, Any], set_by_user: Sequence[str]) -> str:
    """Return a digest of what a config trains, and of the keys of tuning that its user has set."""
    left = deepcopy(dict(resolved))
    for path in (*BESIDE, *KEYS, BATCH, "collective", "placement"):
        _remove(left, path.split("."))
    prefixes = ("collective.", "placement.")
    own = {path: at(resolved, path) for path in set_by_user if path in KEYS or path.startswith(prefixes)}
    return _digest([left, own])


def set_keys(source: schema.Source, overrides: Sequence[str]) -> list[str]:
    """Return the dotted keys that a config, its bases and overrides set; raises UserError as the schema does."""
    keys = {*flat(schema.content(source) if isinstance(source, str) else source)}
    for override in overrides:
        path, _, text = override.partition("=")
        value = schema.parse_value(text)
        keys |= {*flat(value, f"{path}.")} if isinstance(value, Mapping) else {path}
    bare = {section for section in short.SHORT if section in keys}  # the name of a strategy alone
    # a role's short forms are resolved to other keys, so that only all of its place tells what was set
    all_roles = "placement" in keys  # all of it by one word
    roles = [r for r in ROLES if all_roles or any(f"{key}.".startswith(f"placement.{r}.") for key in keys)]
    places = {f"placement.{role}{part}" for role in roles for part in ("", ".name")}
    return sorted(keys | {f"{section}.{short.SHORT[section]}" for section in bare} | places)


def _remove(at: Any, path: Sequence[str]) -> None:
    for part in path[:-1]:
        at = at.get(part, {})
    if isinstance(at, dict):
        at.pop(path[-1], None)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:32]
