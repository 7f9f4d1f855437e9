"""Seconds of a step's computation on another machine (:func:`step_s`): a roofline per layer.

On the measured machine a layer takes its roof, ``max(flops / peak, bytes / bandwidth)``, over its efficiency (Williams,
Waterman and Patterson 2009). It keeps that efficiency: on another machine its seconds scale with its roof. Time that
does not grow with the samples (Python, and calls), and time outside of layers, is the interpreter's and scales with
``scalar``.
"""

from dataclasses import dataclass

from psframe.predict.job import Layer, Work

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Core:
    """Rates of one core of a machine while all ranks are busy.

    Attributes
    ----------
    gflops : float
        1e9 float32 operations a second.
    gbps : float
        GB/s of memory.
    scalar : float
        See :class:`psframe.predict.machine.Machine`.
    """

    gflops: float
    gbps: float
    scalar: float


def step_s(work: Work, n: float, core: Core, threads: int = 1) -> float:
    """Return the seconds of a step of ``n`` samples, forward and backward, on ``threads`` cores without waiting."""
    return sum(by_part(work, n, core, threads).values())


def by_part(work: Work, n: float, core: Core, threads: int = 1) -> dict[str, float]:
    """Return these seconds by part: ``forward``, ``backward``, ``other`` (loading, the loss, Python between layers)."""
    here = Core(work.gflops, work.gbps, work.scalar)
    seconds = {
        d: sum(_layer_s(layer, d, work.batches, n, here, core, threads) for layer in work.layers) for d in DIRECTIONS
    }
    layers = [sum(layer.seconds[d][i] for layer in work.layers for d in DIRECTIONS) for i in (0, 1)]
    rest = [max(0.0, work.step_s[i] - layers[i]) for i in (0, 1)]
    fixed, per_sample = line(work.batches, (rest[0], rest[1]))
    return {**seconds, "other": (fixed + per_sample * n) * here.scalar / core.scalar}


def of_layers(work: Work, n: float, core: Core, threads: int = 1) -> list[float]:
    """Return each layer's seconds of a step of ``n`` samples; half of the time beside layers is the first's."""
    here = Core(work.gflops, work.gbps, work.scalar)
    seconds = [sum(_layer_s(la, d, work.batches, n, here, core, threads) for d in DIRECTIONS) for la in work.layers]
    beside = by_part(work, n, core, threads)["other"] / 2
    seconds[0] += beside
    seconds[-1] += beside
    return seconds


def line(batches: tuple[int, int], seconds: tuple[float, float]) -> tuple[float, float]:
    """Return the fixed seconds and those per sample of the line through two batches; both >= 0, exact for the first."""
    if batches[0] == batches[1]:
        return 0.0, seconds[0] / batches[0]
    per_sample = (seconds[0] - seconds[1]) / (batches[0] - batches[1])
    per_sample = min(max(per_sample, 0.0), seconds[0] / batches[0])
    return seconds[0] - per_sample * batches[0], per_sample


def _layer_s(
    layer: Layer, direction: str, batches: tuple[int, int], n: float, here: Core, core: Core, threads: int
) -> float:
    fixed, per_sample = line(batches, layer.seconds[direction])
    flops, n_bytes = layer.flops[direction], layer.bytes[direction]
    ratio = roof_s(flops, n_bytes, core, threads) / roof_s(flops, n_bytes, here, 1)
    return fixed * here.scalar / core.scalar + per_sample * n * ratio


def roof_s(flops: float, n_bytes: float, core: Core, threads: int) -> float:
    """Return the least seconds of ``flops`` operations and ``n_bytes`` bytes on ``threads`` cores."""
    return max(flops / (core.gflops * threads), n_bytes / (core.gbps * threads)) / 1e9
