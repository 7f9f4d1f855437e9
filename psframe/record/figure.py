"""Figures of runs, by matplotlib where it is installed."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any


def curves(path: Path, runs: Mapping[str, Sequence[Sequence[dict[str, Any]]]], target: float) -> bool:
    """Draw test accuracy against training seconds, a line a label, its repeated runs in one colour, as SVG.

    Return False where there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    drawn = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawn.subplots()
    for number, (label, of_label) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}
        for again, records in enumerate(of_label):
            seconds = list(accumulate(record["epoch_s"] for record in records))
            accuracy = [100 * record["accuracy"] for record in records]
            axes.plot(seconds, accuracy, marker="o", markersize=3, label=None if again else label, **style)
    axes.axhline(100 * target, color="grey", linewidth=0.8, linestyle=(0, (1, 3)))
    axes.set(xlabel="training seconds", ylabel="test accuracy (%)")
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    drawn.savefig(path)
    return True
