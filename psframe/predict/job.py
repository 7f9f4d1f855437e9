"""Input of a prediction: a config's work (:class:`Work`), and the way to train it (:class:`ExchangePlan`)."""

from dataclasses import dataclass, replace
from typing import Any

from psframe.errors import UserError

#: how workers go in modes in which they do not exchange in every step
PACE_OF = {
    **dict.fromkeys(("async_ps", "bounded async_ps", "compensated async_ps", "bounded compensated async_ps"), "own"),
    **dict.fromkeys(("easgd", "hogwild", "dogwild"), "own"),
    **dict.fromkeys(("local_sgd", "block_momentum", "synchronous easgd"), "period"),
}
FEW = 1 / 8  # share of a vector up to which all nodes' payloads are sent once, as in psframe.collectives.compression


def method(mode: str, server: str | None, n_servers: int, collective: str, reproducible: str) -> str:
    """Return the name of a way to exchange; ways of the same cost share one."""
    if collective in ("shared", "hierarchical"):
        return f"{mode} {collective}"  # the sums are canonical at no cost
    servers = f" x{n_servers}" if n_servers > 1 else ""
    return f"{mode}{servers} {collective} {'canonical' if reproducible != 'none' else 'any order'}"


def _mean(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2


@dataclass(frozen=True)
class Layer:
    """Operations and bytes of a layer in a step, and its measured seconds.

    Attributes
    ----------
    name : str
    flops, bytes : dict of str to float
        By direction: operations of a step of the measured batch, and the least bytes that it moves.
    seconds : dict of str to tuple of float
        By direction: seconds of a step of that batch, and of the smaller one.
    outputs, params : int
        Numbers that it hands on for a sample, and its parameters.
    """

    name: str
    flops: dict[str, float]
    bytes: dict[str, float]
    seconds: dict[str, tuple[float, float]]
    outputs: int = 0
    params: int = 0

    def mean(self, other: "Layer") -> "Layer":
        """Return the layer with the mean seconds of two measurements of it."""
        return replace(self, seconds={d: _mean(self.seconds[d], other.seconds[d]) for d in self.seconds})


@dataclass(frozen=True)
class Codec:
    """A codec of gradients, measured on the same machine as the work.

    Attributes
    ----------
    name : str
    share : float
        Bytes of a payload over those of the encoded vector.
    encode_s, add_s : float
        Seconds in which one core encodes all gradients of the model once, or decodes and adds them.
    """

    name: str
    share: float
    encode_s: float
    add_s: float

    def sent_once(self, nodes: int) -> bool:
        """True if each of ``nodes`` nodes receives the payloads of all, not a share of them and then all sums."""
        return nodes == 2 or (nodes - 1) * self.share <= FEW

    def at(self, speed: float) -> "Codec":
        """Return it on a core that is ``speed`` times as fast."""
        return replace(self, encode_s=self.encode_s / speed, add_s=self.add_s / speed)


@dataclass(frozen=True)
class Work:
    """A config's work, measured on one machine by ``n_ranks`` ranks at once.

    Attributes
    ----------
    model : str
    batches : tuple of int
        Samples of a step of the config, and of a smaller one that was also measured.
    step_s : tuple of float
        Seconds of these without exchange: time on their core, with waiting for it only if ranks of the same job share
        it.
    deviation : float
        Standard deviation of these steps over their median.
    layers : list of Layer
    n_train, n_params : int
        Training samples, and parameters with the zeros that align them.
    n_unpadded : int
        Parameters alone, as they are told.
    gflops, gbps, scalar : float
        Of a core of that machine while all ranks are busy; as in :class:`psframe.predict.machine.Machine`.
    n_ranks : int
    startup_s : float
        Seconds from the launch to the first step, on that machine.
    mpi : str
    codec : Codec or None
        The config's codec.
    """

    model: str
    batches: tuple[int, int]
    step_s: tuple[float, float]
    deviation: float
    layers: list[Layer]
    n_train: int
    n_params: int
    gflops: float
    gbps: float
    scalar: float
    n_ranks: int
    startup_s: float
    mpi: str
    codec: Codec | None = None
    n_unpadded: int = 0

    @property
    def param_bytes(self) -> int:
        return 4 * self.n_params

    def mean(self, other: "Work") -> "Work":
        """Return the work with the mean seconds of a step, and of its layers, of two measurements of it."""
        layers = [mine.mean(others) for mine, others in zip(self.layers, other.layers, strict=True)]
        return replace(self, step_s=_mean(self.step_s, other.step_s), layers=layers)

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Work":
        """Create it from the ranks' report (``psframe.predict.ranks``)."""
        layers = [
            Layer(
                row["layer"],
                {d: counts["flops"] for d, counts in row["full"].items()},
                {d: counts["bytes"] for d, counts in row["full"].items()},
                {d: (s[0], s[1]) for d, s in row["seconds"].items()},
                row["outputs"],
                row["params"],
            )
            for row in found["layers"]
        ]
        codec = Codec(**found["codec"]) if found["codec"] else None
        fields: dict[str, Any] = {"layers": layers, "codec": codec}
        fields |= {key: tuple(found[key]) for key in ("batches", "step_s")}
        return cls(**fields, **{key: found[key] for key in cls.__dataclass_fields__ if key not in fields})


@dataclass(frozen=True)
class ExchangePlan:
    """A way to train; ``server`` is None in modes without one, ``n_servers`` applies under ``sync_ps``.

    Attributes
    ----------
    mode, collective, reproducible : str
    server : str or None
    n_servers, ranks, threads, nodes : int
    tier : str or None
        Tier of the buffers; None: the machine's own.
    link : str or None
        Link between nodes; None: the machine's own.
    compression : str
        A codec's name, or ``none``.
    every, pull_every : int
        Steps of a worker between two exchanges, or posts; and between two pulls.
    blocks, samples : int
        Of a step of all workers with ``any_workers``; 0: every worker has a batch of its own.
    stages, shards, micro_batches : int
        Of a network that is cut: ``parallel.pipeline``, ``model`` and ``micro_batches``.
    """

    mode: str
    server: str | None
    n_servers: int
    collective: str
    reproducible: str
    ranks: int
    nodes: int = 1
    threads: int = 1
    tier: str | None = None
    link: str | None = None
    compression: str = "none"
    every: int = 1
    pull_every: int = 1
    blocks: int = 0
    samples: int = 0
    stages: int = 1
    shards: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        max_servers = max(1, self.ranks - (self.server == "dedicated"))
        if self.mode == "sync_ps" and self.n_servers > max_servers:
            raise UserError(
                f"servers must be at most {max_servers} of {self.ranks} rank(s), got {self.n_servers}; give fewer"
            )
        if self.ranks % (self.stages * self.shards):
            raise UserError(
                f"parallel: pipeline x model must divide the number of ranks, {self.ranks}, got "
                f"{self.stages * self.shards}; give other --ranks"
            )

    @property
    def n_workers(self) -> int:
        return (self.ranks - 1 if self.dedicated else self.ranks) // (self.stages * self.shards)

    @property
    def dedicated(self) -> bool:
        return self.server == "dedicated" and self.ranks > 1  # one rank trains alone

    @property
    def is_canonical(self) -> bool:
        """True if the order of a sum's terms is given."""
        return self.reproducible != "none"

    @property
    def pace(self) -> str:
        """How workers go, as :data:`psframe.predict.paces.PACES` has it."""
        if self.stages * self.shards > 1:
            return "stages"
        return PACE_OF.get(self.mode, "step") if self.ranks > 1 else "step"  # one rank trains alone

    @property
    def here(self) -> int:
        """Ranks on the fullest node."""
        return -(-self.ranks // self.nodes)

    @property
    def method(self) -> str:
        if self.pace == "own":  # through a store
            return f"{self.mode} /{self.pull_every}/{self.every}"
        exchanged = method(self.mode, self.server, self.n_servers, self.collective, self.reproducible)
        cut = [f"{n} {what}" for n, what in zip(self._parts, ("stages", "shards", "parts"), strict=True) if n > 1]
        return " ".join([exchanged, *cut, *([f"/{self.every}"] if self.pace == "period" else [])])

    @property
    def _parts(self) -> tuple[int, int, int]:
        return self.stages, self.shards, self.micro_batches

    @property
    def codec(self) -> str:
        """The codec of this way's messages: ``buffer`` encodes all, ``hierarchical`` those between nodes."""
        if self.pace == "own":
            return "none"
        coded = self.nodes > 1 if self.collective in ("shared", "hierarchical") else self.collective == "buffer"
        return self.compression if coded and self.ranks > 1 and self.n_servers == 1 else "none"

    @property
    def name(self) -> str:
        """The way in words, without the ranks."""
        each = max(self.every, self.pull_every)
        words = [self.mode] if each == 1 else [f"{self.mode} every {each}"]
        counts = (self.n_servers, *self._parts, self.blocks)
        for n, what in zip(counts, ("servers", "stages", "shards", "micro-batches", "blocks"), strict=True):
            words += [f"{n} {what}"] if n > 1 else []
        return ", ".join(words) + ("" if self.pace == "own" else f" over {self.collective}{self.encoded}")

    @property
    def encoded(self) -> str:
        """The codec as a suffix of a name."""
        return f", {self.codec}" if self.codec != "none" else ""
