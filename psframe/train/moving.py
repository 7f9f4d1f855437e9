"""Moves of a rank's activations between tiers in the course of a step, as a plan has them (:func:`attach`)."""

from functools import partial
from typing import Any

from psframe.memory.auto import tiers
from psframe.memory.mover import Mover, Traveller
from psframe.memory.pages import DENIED
from psframe.memory.tensor_names import tensor_of
from psframe.memory.tier_options import Option
from psframe.nn.wrapped import Announced, wrap
from psframe.record.trace import MOVES
from psframe.train.assembly.windows import windows
from psframe.train.run import Run


def attach(run: Run) -> None:
    """Give the run a :class:`~psframe.memory.mover.Mover`, and let the layers tell it, where its plan moves tensors."""
    moves = {} if run.team.worker is None else run.places.plan.get("moves", {})
    is_spilled = "activations" in run.places.plan.get("spilled", ())
    if not moves or is_spilled or not (travellers := _travellers(run, moves)):
        return
    trace = run.outputs.trace

    def ended(name: str, began: float) -> None:
        if trace.on:
            trace.add(name, began, thread=MOVES)

    try:
        run.mover = mover = Mover(travellers, ended)
    except OSError as error:
        if error.errno not in DENIED:
            raise
        run.places.site.note(
            f"move_pages is denied here ({error.strerror}), so nothing moves in a step; in a container, allow it with "
            "--cap-add SYS_NICE"
        )
        return
    last = travellers[0].window.n_phases - 1

    def announced(place: int, index: int, layer: Any) -> Announced:
        return Announced(layer, partial(mover.reach, place), partial(mover.reach, last - place))

    wrap(run.network, announced)


def _travellers(run: Run, moves: dict[str, str]) -> list[Traveller]:
    """Return this rank's tensors that move."""
    reaches = tiers(run.places.site, run.places.gbps)
    used = windows(run.network, run.sampler.max_batch, {place for place, _ in run.blocks})
    memory = {place: [block for name, block in run.blocks if name == place and len(block)] for place in moves}
    found = []
    for place, kind in moves.items():
        if memory[place] and place in used:
            fast, slow = Option(tuple(run.places.plan["chosen"][place]), moves=kind).pair
            nodes = reaches[fast].nodes, reaches[slow].nodes
            found.append(Traveller(tensor_of(place), memory[place], *nodes, kind == "out", used[place]))
    return found
