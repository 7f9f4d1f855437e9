"""Schema of a config (:class:`Config`): strict YAML, with overrides from the command line, to validated values.

Sections that name a strategy (model, dataset, optimizer, sync, collective) stay mappings here;
``psframe.config.registry`` validates them against the strategy.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from psframe.config import bases, short, strict_yaml, untrusted
from psframe.config.augment import Augment
from psframe.config.average import Average
from psframe.config.checkpoints import Checkpoint
from psframe.config.registry import END, Count, Fraction, NonNegative, PositiveInt, Seconds, convert
from psframe.config.schedule import Schedule
from psframe.config.short import SHORT, STRATEGIES
from psframe.errors import UserError, nearest

Section = dict[str, Any]
Source = str | Mapping[str, Any]  #: a config: the path of its file, or its content
Name = Annotated[str, msgspec.Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]*{END}", max_length=100)]

TRACED_TURNS = 50  # per epoch, by default
#: defaults of sections without a name
DEFAULTS = {"optimizer": "sgd", "sync": "sync_ps", "collective": "shared"}

#: keys of strategies that are often written without their section
IN_STRATEGIES = ("optimizer.lr", "optimizer.momentum", "sync.mode", "sync.server", "dataset.path", "dataset.limit")


class Stop(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Early stopping: after ``patience`` epochs in which the record's number ``metric`` has not become better by more
    than ``min_delta``. ``better``: ``min`` or ``max``; ``auto``: ``min`` for losses, errors and seconds. ``reach``: a
    value of the metric at which to stop; ``seconds``: of training, after which to stop (0: no limit)."""

    metric: str
    patience: PositiveInt = 3
    min_delta: NonNegative = 0.0
    better: Literal["auto", "min", "max"] = "auto"
    reach: float | None = None
    seconds: Seconds = 0.0


class Train(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Training loop. ``batch_size``: samples per worker and step; ``reproducible``: the runs that must agree to the
    bit; with ``any_workers``, ``global_batch``: samples per step of all workers, cut into ``blocks``
    (``psframe.train.compute.any_workers``); ``threads``: threads of a rank's kernels, ``auto``: its cores if a step is
    large enough; ``precision``: with ``bf16``, activations, their gradients and what layers read of the
    parameters are bfloat16, while sums, gradients of parameters, the loss and the parameters that the optimizer updates
    stay float32; ``label_smoothing``: share of a sample's target that all classes have alike;
    ``stop``: when to end before the last epoch."""

    epochs: PositiveInt = 5
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 64
    global_batch: PositiveInt | None = None
    blocks: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    reproducible: Literal["none", "fixed_workers", "any_workers"] = "fixed_workers"
    threads: PositiveInt | Literal["auto"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    label_smoothing: Fraction = 0.0
    stop: Stop | None = None


class NN(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Network. ``kernels`` of convolutions and dense layers; ``winograd``: fewer products; ``blas``: NumPy's, plain."""

    kernels: Literal["direct", "winograd", "blas"] = "direct"


class Parallel(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Division of a network across ranks: ``pipeline`` stages, whose layers are divided among ``model`` ranks, and
    ``data`` replicas of these, by default as many as the ranks allow. A worker's samples of a step pass the stages in
    ``micro_batches``, by default 4 per stage, in the order of ``schedule`` (``compute.parallel.schedule``). With
    ``convolutions: data`` the ``model`` ranks divide samples in convolutions, and channels in dense layers only. With
    ``recompute`` a stage keeps only the inputs of micro-batches, and repeats their forward pass."""

    data: PositiveInt | Literal["auto"] = "auto"
    pipeline: PositiveInt = 1
    model: PositiveInt = 1
    convolutions: Literal["model", "data"] = "model"
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] | Literal["auto"] = "auto"
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    recompute: bool = False

    @property
    def is_cut(self) -> bool:
        """True if ranks have different parts of the network."""
        return self.pipeline * self.model > 1


class Placement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Memory placement of each role (``psframe.memory.placement``), and the alternatives if it is not available.

    ``fallback`` replaces memory that does not exist. ``spill`` lists the roles that go to ordinary memory, in this
    order, if there is too little. ``minimum`` is the share of a role's pages that ``verify`` requires at the requested
    place. ``hbw_nodes`` declares NUMA nodes to be high-bandwidth memory.
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


class Record(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Output folder ``dir`` of runs, and optional files: ``steps: true`` adds steps.jsonl, one line per step; ``trace:
    true``, or a number of turns, adds trace.json with the first 50, or that number, of each epoch; ``usage: true`` adds
    usage.jsonl, each rank's resource use once a second; ``tensorboard: true`` adds event files for TensorBoard.
    ``metrics`` of the test set are names, or names with keys (:mod:`psframe.nn.metrics`)."""

    dir: str = "runs"
    steps: bool = False
    trace: bool | Count = False
    usage: bool = False
    tensorboard: bool = False
    metrics: list[str | Section] = []

    @property
    def traced_turns(self) -> int:
        """Traced turns per epoch."""
        return TRACED_TURNS * self.trace if isinstance(self.trace, bool) else self.trace


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Handling of faults, and injected faults.

    ``on_worker_loss``: after a rank died, the job ends, or the others continue.

    ``on_nan``: reaction to non-finite gradients; ``check_every``: steps between two checks of memory contents (0:
    none); ``late_s``: seconds that others wait before a late rank is reported (0: never).

    ``slow_rank`` (or ``all``) sleeps after a random share ``slow_share`` of its steps, for ``slow_steps`` times the
    step's duration; ``flip`` flips a bit, as in ``train.faults.injection.Flip``; rank 0 is killed at ``crash_at``, one
    of ``record.checkpoint.CRASH_POINTS``, or with ``POINT:k`` when it gets there for the k-th time.
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


class Elastic(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Ranks that join and leave a running job (``psframe scale``). ``ranks``: those that train at first, where the
    others wait as spares; ``null``: all train, and none can join or leave."""

    ranks: PositiveInt | None = None


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Resolved config; ``versions`` lists the software versions in a run's config.yaml, and has no effect."""

    name: Name
    model: Section
    dataset: Section
    train: Train = Train()
    augment: Augment = Augment()
    nn: NN = NN()
    parallel: Parallel = Parallel()
    optimizer: Section
    schedule: Schedule = Schedule()
    average: Average = Average()
    sync: Section
    collective: Section
    placement: Placement = Placement()
    affinity: Literal["numa", "compact", "scatter", "none"] = "numa"
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()
    fault: Fault = Fault()
    elastic: Elastic = Elastic()
    versions: dict[str, str] = {}


#: names of the strategies of sections that name none
STANDARD = {**DEFAULTS, "schedule": Schedule().name, "average": Average().name}


def read(source: Source, overrides: Sequence[str] = (), collective: str = DEFAULTS["collective"]) -> Config:
    """Return a config, a file's path or its content, with ``key.path=value`` overrides applied.

    ``collective`` is the default if the config names none.

    Raises
    ------
    UserError
        Missing or unreadable file or base, malformed YAML, unknown key (with the nearest one), wrong type or value.
    """
    return resolve(content(source) if isinstance(source, str) else deepcopy(dict(source)), overrides, collective)


def content(path: str) -> dict[str, Any]:
    """Return the content of a config file over its bases (:mod:`psframe.config.bases`), with a name."""
    raw = bases.read(path, SHORT, STANDARD)
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "_", Path(path).stem).lstrip("._-")[:100] or "run")
    return raw


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return a config's content over another's, as over its base."""
    return bases.over(below, above, SHORT, STANDARD)


def resolve(raw: dict[str, Any], overrides: Sequence[str] = (), collective: str = DEFAULTS["collective"]) -> Config:
    """Return the validated config of a mapping, to which ``overrides`` are applied first. UserError as :func:`read`."""
    short.expand(raw)
    for override in overrides:
        short.override(raw, override)
    if bases.KEY in raw:
        raise UserError(f"{bases.KEY} must stand in a config's file, got {raw[bases.KEY]!r} elsewhere; write it there")
    raw = untrusted.at_home(raw)
    defaults = {**DEFAULTS, "collective": "buffer" if _several_serve(raw.get("sync")) else collective}
    if _is_cut(raw.get("parallel")):
        defaults["sync"] = "allreduce"  # every rank has a stage
    _check_keys("", raw, Config)
    for section in ("model", "dataset"):
        if section not in raw:
            raise UserError(f"a config must name a {section}, got none; add `{section}: NAME` or give {section}=NAME")
    for section, key in STRATEGIES.items():
        spec = raw.setdefault(section, {})
        if key not in spec and section not in defaults:
            raise UserError(f"{section}.{key} must name a strategy, got none; add {section}.{key}=NAME")
        raw[section] = {key: spec.get(key, defaults.get(section)), **spec}
    return convert("", raw, Config)


def _several_serve(mode: Any) -> bool:
    """Return True if the section ``sync`` requests several servers, which only one collective supports."""
    is_sync_ps = isinstance(mode, dict) and mode.get("mode", DEFAULTS["sync"]) == "sync_ps"
    return is_sync_ps and mode.get("servers", 1) != 1


def _is_cut(parallel: Any) -> bool:
    """Return True if the section ``parallel`` requests a divided network."""
    return isinstance(parallel, dict) and (parallel.get("pipeline", 1), parallel.get("model", 1)) != (1, 1)


def parse_value(text: str) -> Any:
    """Return the value that a text on the command line has as YAML."""
    return strict_yaml.load(text, f"the value {text!r}")


def spelled(value: Any) -> str:
    """Return a value as the YAML that :func:`parse_value` reads, in one line."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


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
    """Return ``did you mean 'train.epochs'?`` for the key of another section; "" if no section has it."""
    paths = [*IN_STRATEGIES]
    for section in msgspec.structs.fields(Config):
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct):
            paths += [f"{section.name}.{field.name}" for field in msgspec.structs.fields(section.type)]
    matches = [path for path in paths if path.rpartition(".")[2] == key]
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def to_yaml(resolved: Mapping[str, Any]) -> str:
    """Return a mapping of plain values as YAML in the order given."""
    return yaml.safe_dump(dict(resolved), sort_keys=False, default_flow_style=False)
