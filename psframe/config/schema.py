"""The config: YAML read strictly, with overrides from the command line, into checked values.

Sections that name a strategy (model, dataset, optimizer, sync, collective) stay mappings here;
``psframe.config.registry`` checks them against the strategy they name.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from psframe.config import strict_yaml, untrusted
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.config.registry import Count, NonNegative, Positive, PositiveInt, Seconds, convert
from psframe.errors import UserError, nearest, reason

Section = dict[str, Any]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]

#: sections that may be written as the bare name of a strategy, and the key that holds the name
STRATEGIES = {"model": "name", "dataset": "name", "optimizer": "name", "sync": "mode", "collective": "name"}
#: all that may be a bare name
SHORT = {**STRATEGIES, "schedule": "name"}
TRACED_TURNS = 50  # of an epoch, where a user does not say how many
#: what a section means that leaves its name out
DEFAULTS = {"optimizer": "sgd", "sync": "sync_ps", "collective": "shared"}

#: keys of strategies that are often written without their section
IN_STRATEGIES = ("optimizer.lr", "optimizer.momentum", "sync.mode", "sync.server", "dataset.path", "dataset.limit")


class Train(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``batch_size`` is samples a worker takes a step; ``reproducible`` says which runs must agree to the bit; for
    ``any_workers``, ``global_batch`` is samples a step of all workers, cut into ``blocks``
    (``psframe.train.compute.any_workers``); ``threads`` are those of a rank's kernels, ``auto`` the cores that it has
    where a step is work enough for them."""

    epochs: PositiveInt = 5
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 64
    global_batch: PositiveInt | None = None
    blocks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    reproducible: Literal["none", "fixed_workers", "any_workers"] = "fixed_workers"
    threads: PositiveInt | Literal["auto"] = "auto"


class NN(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``kernels``: what computes convolutions and dense layers; ``blas`` is the plain way, over NumPy's."""

    kernels: Literal["direct", "blas"] = "direct"


class Parallel(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How a network is cut across ranks: ``pipeline`` stages, whose layers ``model`` ranks share out, and ``data``
    replicas of all that, by default as many as ranks there are for. A worker's samples of a step go through the stages
    in ``micro_batches``, by default 4 for each stage; ``schedule`` says in which order
    (``compute.parallel.schedule``); where ``convolutions`` are ``data`` these ranks share out samples there, and
    channels in dense layers alone; with ``recompute`` a stage keeps their inputs alone, and passes them once more."""

    data: PositiveInt | Literal["auto"] = "auto"
    pipeline: PositiveInt = 1
    model: PositiveInt = 1
    convolutions: Literal["model", "data"] = "model"
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] | Literal["auto"] = "auto"
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    recompute: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether ranks have different parts of the network."""
        return self.pipeline * self.model > 1


class Schedule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The learning rate over the epochs; see ``psframe.train.schedule``."""

    name: Literal["constant", "step", "cosine"] = "constant"
    step_epochs: PositiveInt = 10
    gamma: Positive = 0.1
    warmup_epochs: NonNegative = 0.0
    base_batch: PositiveInt | None = None


class Placement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where the memory of each role lies (``psframe.memory.placement``), and what to do where it cannot.

    ``fallback`` stands in for memory that does not exist, ``spill`` names the roles that go to ordinary memory, in this
    order, where there is too little. ``minimum`` is the share of a role's pages that ``verify`` wants where they were
    asked for. ``hbw_nodes`` declares NUMA nodes to be high-bandwidth memory.
    """

    parameters: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    gradients: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    optimizer: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    activations: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    data: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    exchange: Section = msgspec.field(default_factory=lambda: {"name": "default"})
    fallback: Literal["none", "ddr", "default"] = "none"
    spill: list[Literal["parameters", "gradients", "optimizer", "activations", "data", "exchange"]] = []
    verify: Literal["error", "warn", "none"] = "warn"
    minimum: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.99
    hbw_nodes: list[Count] | None = None


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``every_epochs: 0`` writes none after epochs; ``every_seconds`` writes them inside an epoch, too; ``resume`` is
    none, auto, or the path of a run."""

    every_epochs: Count = 1
    every_seconds: Seconds = 0.0
    keep: PositiveInt = 3
    resume: str = "none"


class Record(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where runs are written; ``steps: true`` adds steps.jsonl, a line a step; ``trace: true`` adds trace.json
    with the first 50 turns of each epoch, or with so many; ``usage: true`` adds usage.jsonl, what each rank uses of its
    machine once a second; ``tensorboard: true`` adds event files for TensorBoard."""

    dir: str = "runs"
    steps: bool = False
    trace: bool | Count = False
    usage: bool = False
    tensorboard: bool = False

    @property
    def traced_turns(self) -> int:
        """Turns of an epoch that are traced."""
        return TRACED_TURNS * self.trace if isinstance(self.trace, bool) else self.trace


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is done about faults, and which happen on purpose.

    ``on_worker_loss``: where a worker dies, the job ends, or the others go on.

    ``on_nan``: what follows gradients that are not finite; ``check_every``: steps between two checks of what lies in
    memory (0: none); ``late_s``: seconds that others wait until a rank is named (0: never).

    ``slow_rank`` (or ``all``) sleeps after a step, in ``slow_share`` of them at random, for ``slow_steps`` times as
    long as the step took; ``flip`` turns a bit over, as ``train.faults.injection.Flip`` has it; rank 0 is killed at
    ``crash_at``, one of ``record.checkpoint.CRASH_POINTS``, at ``POINT:k`` when it comes there for the k-th time.
    """

    on_worker_loss: Literal["stop", "continue"] = "stop"
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    check_every: Count = 0
    late_s: Seconds = 3.0
    slow_rank: Count | Literal["none", "all"] = "none"
    slow_steps: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 4.0
    slow_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    crash_at: str = "none"
    flip: str = "none"


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A resolved config; ``versions`` is what a run's config.yaml says it was made with, and changes nothing."""

    name: Name
    model: Section
    dataset: Section
    train: Train = Train()
    nn: NN = NN()
    parallel: Parallel = Parallel()
    optimizer: Section
    schedule: Schedule = Schedule()
    sync: Section
    collective: Section
    placement: Placement = Placement()
    affinity: Literal["numa", "compact", "scatter", "none"] = "numa"
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()
    fault: Fault = Fault()
    versions: dict[str, str] = {}


def read(path: str, overrides: Sequence[str] = (), collective: str = DEFAULTS["collective"]) -> Config:
    """Read a config file and apply ``key.path=value`` overrides; ``collective`` stands in where it names none.

    Raises
    ------
    UserError
        Missing or unreadable file, malformed YAML, unknown key (with the nearest valid one), wrong type or value.
    """
    try:
        text = untrusted.text(path, untrusted.CONFIG_BYTES)
    except UnicodeDecodeError:
        raise UserError(f"the config must be UTF-8 text, got {path!r}, which is not; name a YAML file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise UserError(f"a config must be a readable file, got {path!r} ({reason(error)}); check the path") from None
    raw = strict_yaml.load(text, path)
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold keys and values, got {type(raw).__name__}; begin with `model: lenet`")
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "_", Path(path).stem).lstrip("._-")[:100] or "run")
    return resolve(raw, overrides, collective)


def resolve(raw: dict[str, Any], overrides: Sequence[str] = (), collective: str = DEFAULTS["collective"]) -> Config:
    """Check a mapping, after applying ``overrides`` to it."""
    _expand(raw)
    for override in overrides:
        _apply(raw, override)
    raw = untrusted.at_home(raw)
    defaults = {**DEFAULTS, "collective": "buffer" if _several_serve(raw.get("sync")) else collective}
    if _is_cut(raw.get("parallel")):
        defaults["sync"] = "allreduce"  # every rank has a stage
    _check_keys("", raw, Config)
    for section in ("model", "dataset"):
        if section not in raw:
            raise UserError(f"a config must name a {section}, got none; add `{section}: NAME` or give {section}=NAME")
    for section, key in STRATEGIES.items():
        named = raw.setdefault(section, {})
        if key not in named and section not in defaults:
            raise UserError(f"{section}.{key} must name a strategy, got none; add {section}.{key}=NAME")
        raw[section] = {key: named.get(key, defaults.get(section)), **named}
    return convert("", raw, Config)


def _several_serve(mode: Any) -> bool:
    """Whether the section ``sync`` asks for several servers, which one collective alone knows."""
    served = isinstance(mode, dict) and mode.get("mode", DEFAULTS["sync"]) == "sync_ps"
    return served and mode.get("servers", 1) != 1


def _is_cut(parallel: Any) -> bool:
    """Whether the section ``parallel`` asks for a network that is cut."""
    return isinstance(parallel, dict) and (parallel.get("pipeline", 1), parallel.get("model", 1)) != (1, 1)


def parse_value(text: str) -> Any:
    """Return what a value on the command line says."""
    return strict_yaml.load(text, f"the value {text!r}")


def _expand(raw: dict[str, Any]) -> None:
    """Write every strategy that is a bare name in full; YAML reads ``null``, the name of a collective, as nothing."""
    for section, key in SHORT.items():
        if section not in raw:
            continue
        value = raw[section]
        if value is None or isinstance(value, str):
            raw[section] = {key: value or "null"}
        elif not isinstance(value, dict):
            raise UserError(f"{section} must be a name or keys and values, got {value!r}; write `{section}: NAME`")
        elif key in value and value[key] is None:
            value[key] = "null"
    placement: Any = raw.get("placement")
    for role in ROLES if isinstance(placement, dict) else ():
        value = spelled_out(placement.get(role, "default"))
        if not isinstance(value, dict):
            raise UserError(f"placement.{role} must be a placement, got {value!r}; write `{role}: NAME`")
        placement[role] = {"name": "default", **value}


def _apply(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise UserError(f"an override must be key.path=value, got {override!r}; write, say, train.epochs=3")
    if len(keys) > strict_yaml.MOST_DEPTH:
        raise UserError(
            f"an override must have at most {strict_yaml.MOST_DEPTH} keys, got {override!r}; check the path"
        )
    at: Any = raw
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise UserError(f"{override!r} must reach into keys and values, but {key!r} is {at!r}; check the path")
    at[keys[-1]] = strict_yaml.load(text, f"the value of {override!r}")
    _expand(raw)


def _check_keys(where: str, raw: Mapping[str, Any], struct: type[msgspec.Struct]) -> None:
    fields = {f.name: f.type for f in msgspec.structs.fields(struct)}
    for key, value in raw.items():
        if key not in fields:
            hint = _elsewhere(str(key)) or nearest(key, fields)
            raise UserError(f"{where}{key} is no key of the config (got {value!r}); {hint}")
        kind = fields[key]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, Mapping):
            _check_keys(f"{where}{key}.", value, kind)


def _elsewhere(key: str) -> str:
    """Return ``did you mean 'train.epochs'?`` for a key of another section, written without it; "" where none is."""
    paths = [*IN_STRATEGIES]
    for section in msgspec.structs.fields(Config):
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct):
            paths += [f"{section.name}.{field.name}" for field in msgspec.structs.fields(section.type)]
    found = [path for path in paths if path.rpartition(".")[2] == key]
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""


def to_yaml(resolved: Mapping[str, Any]) -> str:
    """Return a mapping of plain values as YAML in the order given."""
    return yaml.safe_dump(dict(resolved), sort_keys=False, default_flow_style=False)
