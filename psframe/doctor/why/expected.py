"""Epochs of a run against what the model of a machine expects (:func:`expected`); ``psframe predict`` computes that."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from psframe.cluster import mpirun
from psframe.config import untrusted
from psframe.doctor.why.cause import Cause
from psframe.doctor.why.counts import number
from psframe.doctor.why.evidence import shown
from psframe.doctor.why.healthy import records_of
from psframe.errors import UserError

SLOW = 1.5  # times the expected seconds of an epoch
#: parts of an epoch: their keys in a record, those in a prediction, and what to do about one that takes longer
PARTS = {
    "compute": (
        ("data_s", "compute_s"),
        ("compute",),
        "See whether the cores have other work or a lower clock (`psframe top`), and where the activations lie.",
    ),
    "waiting for the slowest rank": (
        ("wait_s",),
        ("wait",),
        "`psframe dump RUN` while it trains tells which rank that is; `sync.balance: speed` gives it fewer samples.",
    ),
    "the exchange": (
        ("exchange_s", "update_s"),
        ("exchange", "links"),
        "See where parameters and gradients lie (placement.json) and how busy the link is; `psframe bench collectives` "
        "measures it alone.",
    ),
}


class Row(msgspec.Struct):
    """Prediction of a number of ranks."""

    epoch_s: float
    split: dict[str, float]


class Predicted(msgspec.Struct):
    """As ``psframe predict --json`` writes it."""

    machine: str
    rows: list[Row]


@dataclass(frozen=True)
class Comparison:
    """Measured and expected seconds of an epoch.

    Attributes
    ----------
    machine : str
    measured_s, expected_s : float
    parts : dict of str to (float, float)
        Measured and expected seconds of each of PARTS.
    """

    machine: str
    measured_s: float
    expected_s: float
    parts: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        return (
            f"an epoch takes {self.measured_s:.3g} s, and the model of {shown(self.machine, 80)} expects "
            f"{self.expected_s:.3g} s"
        )

    @property
    def cause(self) -> Cause | None:
        """The part that takes longest beyond what is expected; None for an epoch that is as it should be."""
        if self.measured_s <= SLOW * self.expected_s:
            return None
        worst = max(self.parts, key=lambda name: self.parts[name][0] - self.parts[name][1])
        took, should = self.parts[worst]
        words = str(self)
        return Cause(
            58,
            f"{words[:1].upper()}{words[1:]}: most of the difference is in {worst}, {took:.3g} s in place of "
            f"{should:.3g} s.",
            [f"{name}: {took:.3g} s, expected {should:.3g} s" for name, (took, should) in self.parts.items()],
            PARTS[worst][2],
        )


def expected(path: Path, machine: str) -> Comparison:
    """Compare a run's median epoch with the prediction for a machine's profile; a step is measured here.

    Raises UserError if the run has no epoch, or nothing can be predicted.
    """
    records = records_of(path)
    if not records:
        raise UserError(f"--machine must be given with a run that has an epoch, got none in {str(path)!r}; train on")
    last, later = records[-1], records[1:] or records
    n_ranks, n_nodes = (max(1, int(number(last.get(key)))) for key in ("n_ranks", "n_nodes"))
    predicted = _predicted(path / "config.yaml", n_ranks, n_nodes, machine)
    split = predicted.rows[0].split
    parts = {
        name: (
            median(sum(number(record.get(key)) for key in keys) for record in later),
            sum(split.get(key, 0.0) for key in of_model),
        )
        for name, (keys, of_model, _) in PARTS.items()
    }
    measured_s = median(number(record.get("epoch_s")) for record in later)
    return Comparison(predicted.machine, measured_s, predicted.rows[0].epoch_s, parts)


def _predicted(config: Path, n_ranks: int, n_nodes: int, machine: str) -> Predicted:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "predicted.json")
        words = [sys.executable, "-m", "psframe.predict", str(config), "--ranks", str(n_ranks), "--machine", machine]
        words += ["--per-node", str(-(-n_ranks // n_nodes)), "--json", str(out)]
        if complaint := mpirun.command(words).complaint:
            raise UserError(complaint)
        found = msgspec.json.decode(untrusted.content(out, 1 << 24), type=Predicted)
    if not found.rows:
        raise UserError("a prediction must have a row for the run's ranks, got none; leave out --machine")
    return found
