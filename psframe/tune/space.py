"""Keys that tuning may change (:data:`KNOBS`), with their values on a machine, and those that a command opens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from psframe.config.paths import at
from psframe.config.placement_spec import ROLES
from psframe.config.schema import parse_value, spelled
from psframe.errors import UserError, nearest

ALL = "all"


class Origin(msgspec.Struct, frozen=True):
    """The config on this machine, as its ranks report it (``psframe.tune.ranks``).

    Attributes
    ----------
    machine, mpi : str
    n_nodes : int
    cores : int
        Of a node, that its ranks may use.
    n_numa : int
        NUMA nodes with CPUs.
    tiers : list of str
        Kinds of memory.
    n_workers, batch_size, global_batch, n_train : int
        Of the config at its first number of ranks.
    same_each_step : bool
        True if a step is one exchange of all workers: their number does not change what is trained.
    own_statistics : bool
        True if a layer computes statistics of a worker's own samples: the batch of a worker must stay.
    config : dict
        The resolved config.
    metrics : list of str
        Numbers of an epoch's record that tell how good a network is.
    defaults : dict
        Keys of psframe's collectives with their defaults, by name.
    set_keys : list of str
        Keys that the user has set.
    key : str
        Of the config in the cache of results (:func:`psframe.config.tuned.key`).
    """

    machine: str
    mpi: str
    n_nodes: int
    cores: int
    n_numa: int
    tiers: list[str]
    n_workers: int
    batch_size: int
    global_batch: int
    n_train: int
    same_each_step: bool
    own_statistics: bool
    config: dict[str, Any]
    metrics: list[str]
    defaults: dict[str, dict[str, Any]]
    set_keys: list[str]
    key: str

    def value(self, key: str) -> Any:
        """Return the config's value of a key, as ``train.threads``; None if it has none."""
        return at(self.config, key)


Get = Callable[[str], Any]  #: the value of a key, or of ``ranks``, in a way


@dataclass(frozen=True)
class Knob:
    """A key that may be tuned.

    Attributes
    ----------
    values : callable
        The values worth trying on a machine.
    counts : callable
        True if a value makes a difference in a way.
    fine : bool
        True if it is tried on the best ways alone, one key at a time: its effect hardly depends on the others.
    """

    values: Callable[[Origin], Sequence[Any]]
    counts: Callable[[Origin, Get, Any], bool]
    fine: bool = True


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(most.bit_length())]


def _exchanges(origin: Origin, get: Get, *names: str) -> bool:
    return get("ranks") > 1 and (not names or get("collective.name") in names)


def _threads(origin: Origin, get: Get, threads: Any) -> bool:
    here = -(-get("ranks") // origin.n_nodes)
    return threads == "auto" or (origin.cores // here > 1 and threads * here <= origin.cores)


def _collectives(origin: Origin) -> Sequence[str]:
    return ("shared", "buffer") if origin.n_nodes == 1 else ("hierarchical", "buffer")


def _tiers(origin: Origin) -> Sequence[str]:
    return ["default", *origin.tiers] if len(origin.tiers) > 1 else ["default"]


def _in_stages(*values: Any) -> Knob:
    """Return a knob of networks that are cut into stages."""
    return Knob(
        lambda origin: values if origin.value("parallel.pipeline") > 1 else values[:1],
        # batch normalization takes the statistics of a micro-batch
        lambda origin, get, value: not origin.own_statistics,
    )


KNOBS: dict[str, Knob] = {
    "collective.name": Knob(_collectives, lambda origin, get, value: _exchanges(origin, get), fine=False),
    "sync.server": Knob(
        lambda origin: ("dedicated", "colocated"),
        lambda origin, get, value: get("sync.mode") == "sync_ps" and _exchanges(origin, get),
        fine=False,
    ),
    "sync.servers": Knob(
        lambda origin: (1, origin.n_nodes),
        lambda origin, get, value: get("sync.mode") == "sync_ps" and _exchanges(origin, get, "buffer"),
        fine=False,
    ),
    "train.threads": Knob(lambda origin: ["auto", *_powers(origin.cores)], _threads, fine=False),
    "collective.reducers": Knob(
        lambda origin: ("cores", "all", "server"),
        lambda origin, get, value: _exchanges(origin, get, "shared", "hierarchical"),
    ),
    "collective.bucket_bytes": Knob(
        lambda origin: (0, 1 << 17, 1 << 20),
        lambda origin, get, value: _exchanges(origin, get, "buffer", "hierarchical"),
    ),
    "affinity": Knob(
        lambda origin: ("numa", "compact", "none", *(("scatter",) if origin.n_numa > 1 else ())),
        lambda origin, get, value: origin.cores > 1,
    ),
    "parallel.micro_batches": _in_stages("auto", *_powers(16)),
    "parallel.schedule": _in_stages("1f1b", "gpipe"),
    **{f"placement.{role}.name": Knob(_tiers, lambda origin, get, value: True) for role in ROLES},
}


@dataclass(frozen=True)
class Space:
    """The values of each key that is open.

    Attributes
    ----------
    broad, fine : dict of str to sequence
        Keys tried in all combinations, and those tried one at a time (:attr:`Knob.fine`).
    """

    broad: dict[str, list[Any]]
    fine: dict[str, list[Any]]


def opened(origin: Origin, vary: Mapping[str, Sequence[Any] | None]) -> Space:
    """Return the space of a command: keys that the user has not set, and those that ``vary`` opens or narrows.

    Parameters
    ----------
    vary : mapping
        As :func:`varied` returns it.
    """
    # first what decides which of the others count
    broad = {key: list(values) for key, values in vary.items() if key not in KNOBS and key != ALL and values}
    fine: dict[str, list[Any]] = {}
    for key, knob in KNOBS.items():
        if vary.get(key):
            (fine if knob.fine else broad)[key] = list(vary[key] or ())
        elif key in vary or _is_open(origin, key, vary):
            values = {spelled(value): value for value in (own(origin, key, {}), *knob.values(origin))}
            (fine if knob.fine else broad)[key] = list(values.values())
    # a machine of one core or one kind of memory, and a network in one piece, leave some keys one value
    return Space(*({k: v for k, v in part.items() if len(v) > 1 or k in vary} for part in (broad, fine)))


def _is_open(origin: Origin, key: str, vary: Mapping[str, Any]) -> bool:
    """True if a key is open without being named: the user has not set it, nor keys that belong to its value."""
    section = key.partition(".")[0]
    if section in vary:
        return False  # it is varied as a whole
    compressed = origin.value("collective.compression") not in (None, "none")
    if key == "collective.name" and compressed:
        return False  # the others may not compress, which trains otherwise
    own_keys = [k for k in origin.set_keys if k.startswith("collective.") and k not in KNOBS]
    is_set = key in origin.set_keys or (section == "collective" and bool(own_keys))
    return ALL in vary or not is_set


def own(origin: Origin, key: str, settings: Mapping[str, Any]) -> Any:
    """Return the value that a key has in a way with ``settings`` that do not name it.

    It is the config's, or the default of a strategy that the config does not use.
    """
    section, _, name = key.partition(".")
    collective = settings.get("collective.name")
    if section == "collective" and name != "name" and collective not in (None, origin.value("collective.name")):
        return origin.defaults.get(collective, {}).get(name)
    value = origin.value(key)
    return KNOBS[key].values(origin)[0] if value is None and key in KNOBS and section != "collective" else value


def varied(words: Sequence[str]) -> dict[str, Sequence[Any] | None]:
    """Return the keys of ``--vary KEY`` (None: the values of :data:`KNOBS`) and ``--vary KEY=VALUE,VALUE``.

    Raises UserError for a key without values that has none here, and for malformed values.
    """
    keys: dict[str, Sequence[Any] | None] = {}
    for word in words:
        key, equals, text = word.partition("=")
        values = parse_value(f"[{text}]") if equals else None
        if not equals and key not in (*KNOBS, ALL):
            raise UserError(f"--vary must be KEY=VALUE,VALUE, or a key of psframe tune, got {word!r}; "
                            f"{nearest(key, [*KNOBS, ALL])}")  # fmt: skip
        plain = isinstance(values, list) and all(_is_plain(value) for value in values)
        if equals and (not plain or not values or not key):
            raise UserError(f"--vary must be KEY=VALUE,VALUE, got {word!r}; write, say, --vary affinity=numa,none")
        keys[key] = values
    return keys


def _is_plain(value: Any) -> bool:
    """True for a value that JSON has, too; YAML has dates."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return (
        all(map(_is_plain, value))
        if isinstance(value, list)
        else value is None or type(value) in (str, bool, int, float)
    )


def getter(origin: Origin, n_ranks: int, settings: Mapping[str, Any]) -> Get:
    """Return the function that gives a key's value in a way; ``settings`` are plain."""
    return lambda key: n_ranks if key == "ranks" else settings.get(key, own(origin, key, settings))


def combinations(origin: Origin, n_ranks: int, keys: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values that count, as settings without those that are the config's own."""
    partial: list[dict[str, Any]] = [{}]
    for key, values in keys.items():
        knob = KNOBS.get(key)
        extended: list[dict[str, Any]] = []
        for settings in partial:
            get, n_before = getter(origin, n_ranks, settings), len(extended)
            for value in values:
                if value == own(origin, key, settings):
                    extended.append(settings)
                elif knob is None or knob.counts(origin, get, value):
                    extended.append({**settings, key: value})
            if len(extended) == n_before:
                extended.append(settings)  # no value counts here
        partial = extended
    yield from partial
