"""Comparison ``python -m psframe.bench tiers`` (:func:`main`) of plans with other placements, by a model.

For each network and share of fast memory, the memory time of a step by :mod:`psframe.memory.tier_plan`, over the time
with all tensors in fast memory. Nothing is measured, and no memory is touched.
"""

import random
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from psframe.bench.files import claim, write
from psframe.bench.kernels import INPUTS
from psframe.cluster.parser import Parser
from psframe.config.registry import load
from psframe.errors import UserError, nearest
from psframe.memory.allocator import Allocator, Home
from psframe.memory.arena import Arena
from psframe.memory.auto import PUBLISHED
from psframe.memory.by_tensor import ROLES
from psframe.memory.tensor_names import role_of
from psframe.memory.tier_options import Item, Tier, options
from psframe.memory.tier_plan import best, greedy
from psframe.models import BUILT_IN
from psframe.nn.network import Network
from psframe.record.view import aligned, say
from psframe.train.assembly.accesses import of_step
from psframe.train.assembly.sizes import Sizes
from psframe.train.assembly.windows import windows

USAGE = "python -m psframe.bench tiers [--models M,M] [--shares P,P] [--batch B] [--gbps F,S] [--json FILE]"
EXAMPLE = "python -m psframe.bench tiers --models lenet,resnet20"
N_DRAWS = 101  # random placements, of which the median counts
WRONG = (2 / 3, 4 / 3)  # factors of a bandwidth that a plan is made with


def parser() -> Parser:
    rates = PUBLISHED["knl"][0]
    cli = Parser(USAGE, "Compare plans of tensors in two tiers of memory by a model; nothing is measured.", EXAMPLE)
    cli.add_argument("--models", default=",".join(INPUTS), help="networks (default: all)")
    cli.add_argument("--shares", default="60,30,10", help="percent of the bytes that fit (default: 60,30,10)")
    cli.add_argument("--batch", type=int, default=64, help="samples of a step (default: 64)")
    cli.add_argument(
        "--gbps", default=f"{rates['hbw']},{rates['ddr']}", help="GB/s of both tiers (default: %(default)s)"
    )
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    cli = parser()
    arguments = cli.parse_args(argv)
    arguments = _checked(arguments)
    claim(arguments.json)
    rows = [
        {"model": model, "share": share, **compared(items, share / 100, arguments.gbps)}
        for model in arguments.models
        for items in [items_of(model, arguments.batch)]
        for share in arguments.shares
    ]
    report = {"bench": "tiers", "batch": arguments.batch, "gbps": arguments.gbps, "rows": rows}
    if arguments.json != "-":
        say(table(report))
    write(arguments.json, report)
    return 0


def _checked(arguments: Namespace) -> Namespace:
    arguments.models = arguments.models.split(",")
    for model in arguments.models:
        if model not in INPUTS:
            raise UserError(f"--models must be networks, got {model!r}; {nearest(model, INPUTS)}")
    arguments.shares = _numbers("--shares", arguments.shares, lambda numbers: all(0 <= n <= 100 for n in numbers))
    arguments.gbps = _numbers("--gbps", arguments.gbps, lambda numbers: len(numbers) == 2 and min(numbers) > 0)
    if arguments.batch < 1:
        raise UserError(f"--batch must be 1 or more, got {arguments.batch}; give 64")
    return arguments


def _numbers(name: str, text: str, are_right: Callable[[list[float]], bool]) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not are_right(numbers):
        fix = "60,30,10" if name == "--shares" else "400,90"
        raise UserError(f"{name} must be numbers with commas, in range, got {text!r}; give, say, {fix}")
    return numbers


def items_of(model: str, batch: int) -> list[Item]:
    """Return the tensors of a rank that trains a network alone, with SGD and momentum."""
    shape, n_classes = INPUTS[model]
    network = Network(load("model", BUILT_IN, model)(shape, n_classes), shape, n_classes)
    allocator = Allocator(homes={role: Home(by_tensor=True) for role in ROLES})
    network.bind(Arena(network.layout, 1, allocator), batch, allocator)
    sizes = Sizes.of(allocator, 0).by_place
    accesses = of_step(network, batch, True, True, sizes).own
    used = windows(network, batch, sizes)
    return [Item(place, n_bytes, *accesses[place], used.get(place)) for place, n_bytes in sizes.items() if n_bytes]


def compared(items: Sequence[Item], share: float, gbps: Sequence[float]) -> dict[str, Any]:
    """Return the modelled times of placements within a share of fast memory, over that with all of it fast."""
    room = int(share * sum(item.n_bytes for item in items))
    tiers = [Tier("fast", gbps[0], room), Tier("slow", gbps[1], 1 << 60)]
    plan, rough = best(items, tiers), greedy(items, tiers, options(tiers, False))
    assert plan
    assert rough
    draw = random.Random(0)
    orders = [draw.sample(items, len(items)) for _ in range(N_DRAWS)]
    seconds = {
        "plan": plan.seconds,
        "greedy": rough.seconds,
        "roles": min(_filled(chosen, items, tiers) for chosen in _roles(items, room)),
        "first_touch": _filled(items, items, tiers),
        "random": median(_filled(order, items, tiers) for order in orders),
        "slow": _filled([], items, tiers),
    }
    split = best(items, tiers, splits=True)
    moving = best(items, tiers, move_gbps=gbps[1] / 4)
    assert split
    assert moving
    seconds["moving"] = moving.seconds
    for factor in WRONG:
        misled = best(items, [Tier("fast", gbps[0] * factor, room), tiers[1]], splits=True)
        assert misled
        wrong = sum(misled.chosen[item.place].seconds(item, tiers) for item in items)
        seconds[f"split_at_{factor:.2f}"] = wrong
    fast = sum(item.moved for item in items) / gbps[0] / 1e9
    return {"optimal": plan.distance == 0, "split": split.seconds / fast} | {k: s / fast for k, s in seconds.items()}


def _roles(items: Sequence[Item], room: int) -> list[list[Item]]:
    """Return the tensors of each set of roles that fits as a whole."""
    roles = sorted({role_of(item.place) for item in items})
    sets = [chosen for n in range(len(roles) + 1) for chosen in combinations(roles, n)]
    of_sets = ([item for item in items if role_of(item.place) in chosen] for chosen in sets)
    return [first for first in of_sets if sum(item.n_bytes for item in first) <= room]


def _filled(first: Sequence[Item], items: Sequence[Item], tiers: Sequence[Tier]) -> float:
    """Return the time if tensors fill fast memory in this order, page by page, and all others lie in the other."""
    left, seconds = tiers[0].n_bytes, sum(item.moved for item in items) / tiers[1].gbps
    for item in first:
        share = min(1.0, left / item.n_bytes)
        left -= int(share * item.n_bytes)
        seconds += item.moved * share * (1 / tiers[0].gbps - 1 / tiers[1].gbps)
    return seconds / 1e9


def table(report: dict[str, Any]) -> str:
    """Return the figures as a table."""
    names = [name for name in report["rows"][0] if name not in ("model", "share", "optimal")]
    lines = [["network", "% fast", *names]]
    for row in report["rows"]:
        lines.append([row["model"], f"{row['share']:g}", *(f"{row[name]:.2f}" for name in names)])
    rates = "{:g} and {:g} GB/s".format(*report["gbps"])
    return (
        f"modelled, not measured: memory time of a step with {report['batch']} samples, over that with all tensors in "
        f"fast memory; {rates}\n{aligned(lines)}"
    )
