"""State of a run on one rank (:class:`Run`): its parts, and its progress (:class:`Progress`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psframe import __version__
from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import Group
from psframe.cluster.roles import Team
from psframe.collectives.base import BaseCollective
from psframe.config.schema import Config
from psframe.memory.arena import Arena
from psframe.memory.mover import NO_MOVER, Mover, NoMover
from psframe.memory.role_placement import Places
from psframe.nn.base import LayerHook
from psframe.nn.metrics.meter import Metrics
from psframe.nn.network import Network
from psframe.optim import Updater
from psframe.sync.balance import NO_BALANCE, Balance, NoBalance
from psframe.sync.base import Mode
from psframe.sync.sampler import Sampler
from psframe.sync.tally import Tally
from psframe.train.compute.evaluated import Current
from psframe.train.compute.local import Work
from psframe.train.compute.parallel.full_model import FullModel
from psframe.train.data.batches import Batches
from psframe.train.data.dataset import Facts, LoadedData
from psframe.train.elastic.counted import Counted
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.faults.guard import Guard
from psframe.train.outputs import Outputs


@dataclass
class Progress:
    """Progress of a run through its epochs and steps.

    Attributes
    ----------
    epoch, step : int
        Epochs and steps completed.
    begun_at : int
        Samples of the current epoch done before ``parts``, at the checkpoint that the run continues from.
    parts : list of EpochTimings
        Measurements of the current epoch, one for each part that pauses have cut it into.
    concluded : bool
        True once the current epoch has a record and is counted in ``epoch``.
    record : dict or None
        Record of the last epoch, on rank 0.
    lost, went_back, resized : list of dict
        Lost ranks, rollbacks to a checkpoint and changes of the ranks in this epoch.
    counted : Counted or None
        Counts of the current epoch by the ranks before a change, on rank 0.
    failed_step : int
        Step at which the last rollback began.
    lr : float or None
        Base learning rate that a callback has set in place of the optimizer's.
    stop : str
        Reason of a callback to end the run after this epoch; "" to go on.
    """

    epoch: int = 0
    step: int = 0
    begun_at: int = 0
    parts: list[EpochTimings] = field(default_factory=list)
    concluded: bool = False
    record: dict[str, Any] | None = None
    lost: list[dict[str, Any]] = field(default_factory=list)
    went_back: list[dict[str, Any]] = field(default_factory=list)
    resized: list[dict[str, Any]] = field(default_factory=list)
    counted: Counted | None = None
    failed_step: int = 0
    lr: float | None = None
    stop: str = ""

    def forget(self) -> None:
        """Begin the next epoch, once this one is counted."""
        self.begun_at, self.concluded, self.counted = 0, False, None
        self.parts.clear()
        self.lost, self.went_back, self.resized = [], [], []  # the record has those that were


@dataclass
class Run:
    """Parts of a run on one rank, made by :func:`psframe.train.assembly.assemble.build`."""

    config: Config
    cluster: Cluster
    team: Team
    facts: Facts
    held: LoadedData
    network: Network
    sampler: Sampler
    batches: Batches
    places: Places
    collective: BaseCollective
    updater: Updater
    guard: Guard
    sync: Mode
    tally: Tally
    group: Group
    work: Work
    labels: dict[str, Any]  # fields of every record: modes, counts
    metrics: Metrics = field(default_factory=dict)  # of the test set, by label
    balance: Balance | NoBalance = NO_BALANCE
    hook: LayerHook | None = None
    blocks: list[tuple[str, np.ndarray]] = field(default_factory=list)  # (role, memory), for the page audit
    mover: Mover | NoMover = NO_MOVER
    evaluated: Current = field(default_factory=Current)  # parameters that the test set is evaluated with
    full_model: FullModel | None = None  # with stages or shards: the full network's parameters
    inner: list[Cluster] = field(default_factory=list)  # clusters of some of the ranks, made for this run alone
    leaves: bool = False  # True once this rank has handed over what it measured, to wait as a spare
    parted: bool = False  # True once all ranks of its job have met for the last time
    remainder: Any = None  # a Remainder, once its ranks change
    progress: Progress = field(default_factory=Progress)
    outputs: Outputs = field(default_factory=Outputs)

    @property
    def model_state(self) -> Arena | FullModel:
        """Holder of the full network's parameters (on rank 0) and of their layout."""
        return self.full_model or self.network.arena

    def rows(self) -> list[np.ndarray]:
        """Return the rows of state that a checkpoint stores beside the parameters, on rank 0."""
        return list(self.full_model.state) if self.full_model else self.sync.state().rows


def headline(run: Run, unused: Sequence[str]) -> str:
    """Return the line that describes a run before it trains, and one of keys without effect. Rank 0 only."""
    labels = run.labels
    exchange = labels["sync_mode"] + (f" over {labels['collective']}" if labels["collective"] else "")
    exchange += f" and a {labels['store']} store" if labels["store"] and labels["collective"] else ""
    exchange += f" over a {labels['store']} store" if labels["store"] and not labels["collective"] else ""
    n_servers, server = labels["n_servers"], ""
    if n_servers > 1 or labels["server"] == "dedicated":
        server = f"{n_servers} {labels['server']} servers and " if n_servers > 1 else "a dedicated server and "
    stages = "".join(f"{labels[key]} {key} x " for key in ("stages", "shards") if key in labels)
    micro_batches = f" in {labels['micro_batches']} micro-batches" if "micro_batches" in labels else ""
    ranks = f"{labels['n_ranks']} rank(s) on {labels['n_nodes']} node(s)"
    continued = ""
    run_dir = run.outputs.run_dir
    if run_dir and run_dir.saved:
        samples = f" and {run_dir.cursor:,} samples" if run_dir.cursor else ""
        continued = f", continued after epoch {run_dir.epoch}{samples}"
    elif run.config.checkpoint.resume == "auto":
        continued = ", a new run: there is no unfinished one to continue"
    idle = f"\nnot used by this choice: {', '.join(unused)}" if unused else ""
    return (
        f"psframe {__version__}: {labels['model']} on {labels['dataset']} ({run.facts.n_train:,} training and "
        f"{run.facts.n_test:,} test samples), {exchange}, {ranks}: {server}{stages}{labels['n_workers']} worker(s) "
        f"x batch {labels['batch_size']}{micro_batches}{continued}{idle}"
    )
