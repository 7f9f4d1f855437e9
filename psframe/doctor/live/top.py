"""Command ``psframe top [RUN]`` (:func:`main`): the ranks of a running job in a terminal, a row each."""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from psframe.cluster.parser import Parser
from psframe.cluster.process import guarded
from psframe.doctor.live.snapshot import Live, Snapshot
from psframe.errors import UserError
from psframe.record.view import aligned, say

USAGE = "psframe top [RUN] [--every SECONDS] [--once]"
EXAMPLE = "psframe top runs/fashion-20261121-204643"
COLUMNS = ("rank", "does", "epoch", "step", "samples/s", "exchange", "cores", "memory", "faults/s", "state")
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a curve


def parser() -> Parser:
    cli = Parser(USAGE, "Show what the ranks of a running job do, on this host; Ctrl-C leaves.", EXAMPLE)
    cli.add_argument("run", nargs="?", help="the folder of a run that trains (default: your newest one on this host)")
    cli.add_argument("--every", type=float, default=2.0, help="seconds between two looks (default: 2)")
    cli.add_argument("--once", action="store_true", help="print one look as text, and end")
    return cli


def _arguments(argv: Sequence[str]) -> Namespace:
    cli = parser()
    arguments = cli.parse_args(argv)
    if not 0.1 <= arguments.every <= 3600:
        cli.error(f"--every must be 0.1 to 3600, got {arguments.every:g}")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Raise UserError where no such job trains here."""
    arguments = _arguments(argv)
    live = Live(Path(arguments.run) if arguments.run else None)
    if arguments.once or not sys.stdout.isatty():
        time.sleep(arguments.every)
        say(text(live.look()))
        return 0
    try:
        import rich  # noqa: F401
    except ImportError:
        raise UserError("top must have rich to draw, got none; pip install rich, or give --once") from None
    _draw(live, arguments.every)
    return 0


def _draw(live: Live, every_s: float) -> None:
    """Draw the job until it ends, or Ctrl-C."""
    from rich.live import Live as Screen

    try:
        with Screen(_drawn(live.look()), auto_refresh=False, screen=True) as screen:
            while not live.has_ended:
                time.sleep(every_s)
                screen.update(_drawn(live.look()), refresh=True)
    except KeyboardInterrupt:
        return
    say(f"{live.run}: the job has ended")


def _drawn(snapshot: Snapshot) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=True, box=None, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("does", "state") else "right", no_wrap=True)
    for cells in rows(snapshot):
        table.add_row(*map(Text, cells))
    return Group(*map(Text, head(snapshot)), Text(), table)


def text(snapshot: Snapshot) -> str:
    """Return a look as text."""
    return "\n".join([*head(snapshot), "", aligned([list(COLUMNS), *rows(snapshot)])])


def rows(snapshot: Snapshot) -> list[list[str]]:
    """Return a row of each rank."""
    return [
        [
            str(row.rank),
            row.doing,
            str(row.epoch),
            f"{row.step:,}",
            f"{row.samples_per_s:,.0f}",
            "-" if row.exchanging is None else f"{row.exchanging:.0%}",
            f"{row.cores:.2f}",
            f"{row.resident / 2**20:,.0f} MiB",
            f"{row.faults_per_s:,.0f}",
            row.state,
        ]
        for row in snapshot.rows
    ]


def head(snapshot: Snapshot) -> list[str]:
    """Return lines on the job as a whole."""
    last = snapshot.last
    shown = f"{len(snapshot.rows)} of {last['n_ranks']}" if "n_ranks" in last else str(len(snapshot.rows))
    lines = [f"{snapshot.run}: {shown} ranks on this host, {snapshot.samples_per_s:,.0f} samples/s"]
    if last:
        mode = f"{last.get('sync_mode')} over {last.get('collective') or last.get('store')}"
        lines.append(f"{last.get('model')} on {last.get('dataset')}, {mode}, staleness {last.get('staleness_p50')}")
    for key, form in (("loss", ".4f"), ("accuracy", ".2%")):
        values = finite([record.get(key) for record in snapshot.epochs])
        if values:
            lines.append(f"{key:9}{values[-1]:{form}} {curve(values)}")
    if snapshot.placed:
        nodes = ", ".join(f"node {node}: {n / 2**20:,.1f} MiB" for node, n in sorted(snapshot.placed.items()))
        lines.append(f"memory   {nodes}")
    if snapshot.faults:
        lines.append(f"faults   {', '.join(f'{name}: {value:,.0f}' for name, value in snapshot.faults.items())}")
    return lines


def finite(values: Sequence[Any]) -> list[float]:
    """Return the numbers that can be drawn."""
    return [float(value) for value in values if isinstance(value, int | float) and isfinite(value)]


def curve(values: Sequence[float]) -> str:
    """Return the last values as a row of bars."""
    shown = values[-WIDTH:]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[len(BARS) // 2] * len(shown)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in shown)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
