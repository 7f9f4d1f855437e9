"""Measurements for a prediction, by mpirun: this machine's figures (:func:`machine`), a config's :func:`work`."""

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from psframe.bench import sweep
from psframe.errors import UserError
from psframe.memory.topology import read
from psframe.predict import load
from psframe.predict.job import Work
from psframe.predict.machine import FIGURES, Exchange, Figure, Machine, Tier

MAX_A_CORE = 8  # ranks per core
LEAST = 2  # ranks that exchange


def this() -> str:
    """Return a title that identifies this kind of machine: its CPU, cores and memory."""
    gib = psutil.virtual_memory().total / 2**30
    return f"{read('/', environ={}).cpu or platform.machine()}, {n_cores()} core(s), {gib:.0f} GiB"


def check_is_this(profile: Machine) -> None:
    """Raise UserError if a profile, whose epochs are to be checked, is of another machine."""
    if profile.title != this():
        raise UserError(
            f"--check must have the profile of this machine ({this()}), got one of {profile.title}; write it by "
            "psframe predict --measure FILE"
        )


def n_cores() -> int:
    """Return the physical cores that this process may run on."""
    return read("/", environ={}).n_cores_of(os.sched_getaffinity(0))


def machine(start: Sequence[str], told: Callable[[str], None]) -> Machine:
    """Measure this machine, in some minutes; ``told`` is called with the name of each measurement."""
    cores = n_cores()
    told(f"memory and messages, {cores} rank(s)")
    all_ranks, one_rank = _ranks(start, max(cores, LEAST), "node"), _ranks(start, 1, "node")
    other_load = _load(all_ranks) | _load(one_rank)
    exchanges = []
    n = LEAST
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "exchanges.yaml"
        empty.write_text("name: exchanges\n", "utf-8")
        while n <= max(LEAST, MAX_A_CORE * cores):
            told(f"exchanges, {n} ranks")
            report = _ranks(start, n, "exchange", str(empty))
            exchanges += [Exchange(**row) for row in report["exchanges"]]
            other_load |= _load(report)
            n *= 2
    source = "measured: psframe.predict --measure"
    memory = Tier(
        Figure(round(all_ranks["gbps"], 2), source),
        Figure(round(one_rank["gbps"], 2), source),
        Figure(round(psutil.virtual_memory().total / 2**30, 1), "the kernel"),
    )
    figures: Any = {key: Figure(round(all_ranks[key], 3), source) for key in FIGURES}
    rounded = [Exchange(e.method, e.ranks, e.bytes, round(e.seconds, 7)) for e in _rising(exchanges)]
    return Machine(
        title=this(), cores=Figure(cores, "the kernel"), memory="ddr", tiers={"ddr": memory}, mpi=all_ranks["mpi"],
        exchanges=rounded, load=other_load.told,
        **figures,
    )  # fmt: skip


def _rising(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return them with seconds that never fall as bytes grow: differences between steps may be below the noise."""
    longest: dict[tuple[str, int], float] = {}
    rising = []
    for exchange in sorted(exchanges, key=lambda e: e.bytes):
        key = exchange.method, exchange.ranks
        longest[key] = max(longest.get(key, 0.0), exchange.seconds)
        rising.append(Exchange(exchange.method, exchange.ranks, exchange.bytes, longest[key]))
    return rising


def work(start: Sequence[str], n: int, config: str, overrides: Sequence[str]) -> tuple[Work, dict[str, Any]]:
    """Return a config's work on ``n`` ranks of this machine, and the ranks' report with the config's way to exchange.

    The report's ``load`` is the :class:`psframe.predict.load.Load` that was seen.
    """
    return with_turns(_ranks(start, n, "compute", config, *overrides), max(1.0, n / n_cores()))


def with_turns(found: dict[str, Any], turns: float) -> tuple[Work, dict[str, Any]]:
    """Return the work, and the complete report, of ranks of which ``turns`` share a core.

    CPU time of a step is multiplied by the turns, and excludes other load on the core. Wall-clock time includes the
    turns already.
    """
    turns = turns if found["cpu_time"] else 1.0
    steps = [turns * seconds for seconds in found["step_s"]]
    return Work.of({**found, "step_s": steps}), {**found, "load": _load(found).sharing(turns)}


def _load(found: dict[str, Any]) -> load.Load:
    return load.Load(**found["load"])


def _ranks(start: Sequence[str], n: int, *arguments: str) -> Any:
    return sweep.reported(start, n, "psframe.predict.ranks", ["psframe.predict.ranks", *arguments])
