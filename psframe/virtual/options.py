"""Options of commands that simulate (:func:`add`)."""

from argparse import Namespace
from typing import Any

from psframe.cluster.parser import Parser
from psframe.errors import UserError
from psframe.predict import machine

NAMES = ("machine", "nodes", "link", "slow", "lose", "seed", "step_s")


def add(cli: Parser) -> None:
    """Add the options of commands that simulate."""
    cli.add_argument("--machine", help=f"a profile: a file, or {', '.join(machine.names())}")
    cli.add_argument("--nodes", type=int, help="nodes of these ranks (default: as few as have a core for each rank)")
    cli.add_argument("--link", help=f"what joins nodes: {', '.join(machine.links())} (default: the machine's)")
    cli.add_argument("--slow", metavar="RANK:STEPS", help="a rank that sleeps for so many step times after each step")
    cli.add_argument("--lose", metavar="RANK:SECONDS,...", help="ranks that die, and after how many virtual seconds")
    cli.add_argument("--seed", type=int, default=0, help="of the steps' random part, and of ties (default: 0)")
    cli.add_argument("--step-s", type=float, help="seconds of a worker's step there, in place of measuring one here")


def check(arguments: Namespace, simulates: bool) -> None:
    """Raise UserError for options that have no effect, in a command that may simulate or train."""
    asked = [name for name, value in given(arguments).items() if value is not None and (name, value) != ("seed", 0)]
    if asked and not simulates:
        option = f"--{asked[0].replace('_', '-')}"
        raise UserError(f"{option} must go with --simulate, got it without; add that, or leave {option} out")


def given(arguments: Namespace) -> dict[str, Any]:
    """Return the options by name."""
    return {name: getattr(arguments, name) for name in NAMES}
