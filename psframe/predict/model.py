"""Model of the work of an epoch on a machine (:class:`Job`): computation, exchange and links of a step.

    epoch = steps x (computation x turns x straggler + exchange of a node + visible time of links)

``turns`` is the number of workers that share a core. On the machine at hand, the slowest of W workers is later than the
others by their deviation times sqrt(2 ln W), the expected maximum of W normal numbers. For another machine no
measurement here tells how late its workers are: no waiting is modelled. Between nodes ``hierarchical`` and ``buffer``
send gradients during backward; the time that this hides is not counted.
"""

from dataclasses import dataclass, replace
from math import ceil

from psframe.predict import codec_cost, compute, exchange, learned
from psframe.predict.compute import Core
from psframe.predict.job import Codec, ExchangePlan, Work
from psframe.predict.machine import Machine, link
from psframe.predict.measured import interpolated

WHOLE_TURNS = 4  # below this, turns of ranks on a core are rounded up
HIDDEN = 0.8  # share of a backward pass that can overlap with sending


@dataclass(frozen=True)
class Prediction:
    """Modelled seconds of an epoch.

    Attributes
    ----------
    way : Way
    steps : int
    compute_s, wait_s, exchange_s, network_s : float
        Of an epoch: computation, waiting for the slowest worker (0 unless the machine is the one at hand), the exchange
        inside nodes, and the visible time of links.
    measured : tuple of str
        Those of these that are from measurements of this very machine, not computed from figures.
    notes : tuple of str
        Problems of the way, such as too little memory.
    factor : float
        Correction by measured epochs (:mod:`psframe.predict.learned`).
    """

    way: ExchangePlan
    steps: int
    compute_s: float
    wait_s: float
    exchange_s: float
    network_s: float
    measured: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    factor: float = 1.0

    @property
    def modelled_s(self) -> float:
        """Seconds of an epoch, without the correction."""
        return self.compute_s + self.wait_s + self.exchange_s + self.network_s

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        return self.modelled_s * self.factor


@dataclass(frozen=True)
class Job:
    """A config's work on a machine.

    Attributes
    ----------
    machine : Machine
    work : Work
        As measured with a core for every rank.
    crowded : Work or None
        The same, with two ranks for every core of the measured machine.
    here : bool
        True if that is ``machine``.
    hosts : int
        Nodes that share the cores of one machine, as network namespaces do.
    """

    machine: Machine
    work: Work
    crowded: Work | None = None
    here: bool = False
    hosts: int = 1

    def core(self, way: ExchangePlan) -> Core:
        """Return the rates of a core of the machine while all ranks of a node compute."""
        machine = self.machine
        if self.here:
            return Core(self.work.gflops, self.work.gbps, self.work.scalar)
        tier = machine.tier(way.tier)
        busy = max(1, min(way.here * way.threads, int(machine.cores.value)))
        return Core(machine.gflops.value, min(tier.core_gbps.value, tier.gbps.value / busy), machine.scalar.value)

    def compute_s(self, way: ExchangePlan, n: float) -> float:
        """Return a worker's seconds for a step of ``n`` samples, while all ranks of its node compute."""
        turns = self.turns(way)
        alone = compute.step_s(self.work, n, self.core(way), way.threads)
        if turns > 1 and self.crowded:  # sharing a core costs more than the turns
            extra = self.crowded.step_s[0] / self.work.step_s[0] * self.work.n_ranks / self.crowded.n_ranks
            alone *= max(1.0, extra)
        return alone * turns

    @property
    def startup_s(self) -> float:
        """Seconds from launch to the first step: Python and its modules, at the interpreter's speed."""
        return self.work.startup_s * (1.0 if self.here else self.work.scalar / self.machine.scalar.value)

    def turns(self, way: ExchangePlan) -> float:
        """Return the number of ranks that a worker's core serves while it computes.

        Few ranks take complete turns, since a step is shorter than the kernel's time slices; several steps between two
        exchanges are not. A server that waits in MPI spins, and so needs its turn.
        """
        cores = self.machine.cores.value / self.hosts
        sleeps = way.dedicated and way.nodes == 1 and way.collective in ("shared", "hierarchical", "null")
        turns = (way.here - sleeps) * way.threads / cores
        meets_each_step = way.every == 1
        return max(1.0, float(ceil(turns)) if turns < WHOLE_TURNS and meets_each_step else turns)

    def node(self, way: ExchangePlan) -> exchange.Node:
        """Return the model of the fullest node's ranks in an exchange."""
        return exchange.Node(self.machine, way.here, way.tier, self.hosts)

    def named(self, way: ExchangePlan) -> str:
        """Return the name of an epoch among the measured ones of the machine."""
        return learned.named(self.work, way, self.machine, self.hosts)

    def exchange_s(self, way: ExchangePlan, n_bytes: int) -> tuple[float, bool]:
        """Return the seconds of an exchange and update of a node, and True if they derive from measured ones.

        ``n_bytes`` are those of the parameters that ranks exchange.
        """
        node, codec, measured_s = self.node(way), self.codec(way), None
        if codec and way.collective == "buffer":
            if way.mode == "allreduce":  # its payloads travel as canonical gradients do
                measured_s = self._measured_s(replace(way, reproducible="fixed_workers"), int(codec.share * n_bytes))
            return codec_cost.buffer_s(node, way, n_bytes, codec, measured_s), measured_s is not None
        measured_s = self._measured_s(way, n_bytes)
        seconds = exchange.local_s(node, way, n_bytes) if measured_s is None else measured_s
        return seconds + (codec_cost.leaders_s(way, codec) if codec else 0.0), measured_s is not None

    def codec(self, way: ExchangePlan) -> Codec | None:
        """Return the codec of the way's messages, on a core of the machine; None if there is no encoding."""
        codec = self.work.codec
        if codec is None or way.codec == "none":
            return None
        return codec.at(1.0 if self.here else self.machine.scalar.value / self.work.scalar)

    def _measured_s(self, way: ExchangePlan, n_bytes: int) -> float | None:
        """Return the seconds of an exchange of one machine's ranks without codec; None if not measured there."""
        if way.nodes > 1 and self.hosts == 1:
            return None
        collective = "shared" if way.collective == "hierarchical" else way.collective
        return interpolated(self.machine.exchanges, replace(way, collective=collective), n_bytes)

    def network_s(self, way: ExchangePlan, computed: float) -> float:
        """Return the visible seconds of links in a step, without those hidden by backward.

        ``computed``: seconds of computation beside which gradients leave; 0 if they leave after it.
        """
        n_bytes, node_link = self.work.param_bytes, link(way.link or self.machine.link)
        if codec := self.codec(way):  # a codec encodes all gradients at once: these leave after backward
            return exchange.between_s(way, n_bytes, node_link, codec)
        seconds = exchange.between_s(way, n_bytes, node_link)
        if way.collective not in ("hierarchical", "shared", "buffer"):
            return seconds
        parts = compute.by_part(self.work, self.work.batches[0], self.core(way), way.threads)
        hidden = HIDDEN * computed * parts["backward"] / sum(parts.values())
        tail = exchange.between_s(way, n_bytes * (1 - HIDDEN), node_link)
        return max(seconds - hidden, min(tail, seconds))

    def notes(self, way: ExchangePlan) -> tuple[str, ...]:
        """Return the problems of a way on this machine."""
        notes = []
        if (way.samples or way.n_workers * self.work.batches[0]) > self.work.n_train:
            notes.append(f"{way.ranks} ranks take all {self.work.n_train:,} samples in one step")
        tier = self.machine.tier(way.tier)
        need = (2 * way.here + 4) * self.work.param_bytes / 2**30
        if need > tier.gib.value:
            notes.append(f"parameters, gradients and state take {need:.0f} GiB of {tier.gib.value:.0f}")
        if way.mode == "hogwild" and way.nodes > 1:
            notes.append(f"hogwild on {way.nodes} nodes: training refuses that; dogwild does it")
        if way.blocks and way.n_workers > way.blocks:
            notes.append(f"{way.n_workers} workers for {way.blocks} blocks: training refuses that")
        cores = self.machine.cores.value / self.hosts
        if way.here * way.threads > cores:
            notes.append(f"{way.here} ranks of {way.threads} thread(s) on {cores:g} core(s)")
        if self.here and self.machine.mpi not in ("", self.work.mpi):
            notes.append(f"exchanges were measured with {self.machine.mpi}, and this is {self.work.mpi}")
        return tuple(notes)
