"""Check of simulations beside the same training on real ranks (:func:`told`); the machine's profile keeps both."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from psframe.errors import UserError
from psframe.predict import check
from psframe.predict.machine import Check
from psframe.record.view import aligned
from psframe.virtual.asked import Simulations
from psframe.virtual.training import Simulation

Records = Sequence[dict[str, Any]]


def beside(request: Simulations, start: Sequence[str], overrides: Sequence[str], n: int) -> tuple[Simulation, Records]:
    """Train on ``n`` real ranks; return their records, and the simulation of the same, whose step was timed around.

    A machine with noise may be another one minutes later.

    Raises
    ------
    UserError
        If they do not train, or lie on another number of nodes.
    """
    config = request.arguments.config
    real = check.trained(start, config, overrides, n)
    request.time(config, overrides)
    simulation = request.simulation(config, overrides, n)
    wanted, nodes = max(simulation.premises.node_of) + 1, real[-1]["n_nodes"]
    if nodes != wanted:
        raise UserError(
            f"--check must train on the nodes that are simulated, {wanted}, got {nodes} from the launcher; "
            "give --nodes what it starts ranks on"
        )
    return simulation, real


def told(runs: Sequence[tuple[Records, Records, Sequence[str]]]) -> tuple[str, list[Check]]:
    """Return a table of simulated and real runs, with their overrides, and their seconds, for a machine's profile."""
    rows = [["what", "ranks", "nodes", "simulated s", "real s", "error", "staleness apart", "accuracy apart"]]
    checks = []
    for simulated, real, overrides in runs:
        last, virtual_s, real_s = real[-1], check.epoch_s(simulated), check.epoch_s(real)
        one = Check(_what(last, overrides), last["n_ranks"], round(virtual_s, 6), round(real_s, 6), last["n_nodes"])
        checks.append(one)
        rows.append(
            [one.what, str(one.ranks), str(one.hosts), f"{virtual_s:.3g}", f"{real_s:.3g}", f"{one.error:+.0%}",
             f"{apart(simulated, real):.2f}", _accuracy(simulated[-1], last)]
        )  # fmt: skip
    return aligned(rows), checks


def apart(simulated: Records, real: Records) -> float:
    """Return the total variation distance of the staleness of two runs, without their first epochs."""
    a, b = Counter[str](), Counter[str]()
    for counts, records in ((a, simulated), (b, real)):
        for record in records[1:]:
            counts.update(record["staleness"])
    return sum(abs(a[key] / (a.total() or 1) - b[key] / (b.total() or 1)) for key in a | b) / 2


def _accuracy(simulated: dict[str, Any], real: dict[str, Any]) -> str:
    return "-" if real["accuracy"] is None else f"{simulated['accuracy'] - real['accuracy']:+.3f}"


def _what(record: dict[str, Any], overrides: Sequence[str]) -> str:
    """Return the model, batch and exchange of a run, as :class:`psframe.predict.machine.Check` has them."""
    exchange = [record[key] for key in ("sync_mode", "server", "collective", "store") if record[key]]
    keys = [key.replace(", ", ",") for key in overrides if key.startswith("sync") and key != f"sync.mode={exchange[0]}"]
    return f"{record['model']}, batch {record['batch_size']}, {' '.join([*exchange, *keys])}"
