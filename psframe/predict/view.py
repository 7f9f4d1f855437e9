"""Output of predictions: text for a terminal (:func:`table`), and plain data for the report (:func:`plain`)."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from psframe.predict import learned
from psframe.predict.command import Asked
from psframe.predict.machine import Check, Machine
from psframe.predict.published import woo
from psframe.predict.search import Found
from psframe.record.view import aligned

SAME = 1.005  # ratio of seconds below which predictions are equal
#: the parts of an epoch, and their fields in a prediction
PARTS = {"compute": "compute_s", "wait": "wait_s", "exchange": "exchange_s", "links": "network_s"}


def table(asked: Asked, found: Sequence[Found], best: bool) -> str:
    """Format predictions as text, with their modelled parts, and the errors of earlier ones."""
    work, machine = asked.job.work, asked.job.machine
    batch = f"blocks of {work.batches[0]}" if asked.way["blocks"] else f"batch {work.batches[0]} a worker"
    head = (
        f"{work.model}, {work.n_train:,} samples, {batch}, {work.n_unpadded or work.n_params:,} parameters, on "
        f"{machine.title}: seconds of an epoch, MODELLED; start-up, once compiled, about {asked.job.startup_s:.0f} s\n"
    )
    rows = [["way", "ranks", "nodes", "threads", "s an epoch", *PARTS, "samples/s", "from", ""]]
    for labelled in found:
        p = labelled.prediction
        parts = [_share(getattr(p, key), p.modelled_s) for key in PARTS.values()]
        rate = f"{work.n_train / p.epoch_s:,.0f}"
        origin = " and ".join(p.measured) + " measured" if p.measured else "figures alone"
        rows.append(
            [labelled.label, str(p.way.ranks), str(p.way.nodes), str(p.way.threads), _seconds(p.epoch_s), *parts, rate,
             origin, ""]
        )  # fmt: skip
    lines = [head, aligned(rows), ""]
    notes = dict.fromkeys(f"note: {note}" for labelled in found for note in labelled.prediction.notes)
    if not best:
        lines += [_fastest(found), ""]
    lines += [*notes, *_caveats(asked), error_line(machine.checks), *known_lines()]
    return "\n".join(lines)


def _caveats(asked: Asked) -> list[str]:
    """Return notes on all predictions of a command: waiting that is not modelled, other loads that were seen."""
    notes = []
    if not asked.job.here:
        notes.append("note: wait is 0: how late another machine's ranks are is neither modelled nor measured")
    if asked.load.seen:
        notes.append(f"note: measured beside other work on this machine: {asked.load.told}")
    if asked.job.machine.load:
        notes.append(f"note: the machine's profile was measured beside other work: {asked.job.machine.load}")
    return notes


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.0%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:,.0f}"


def _fastest(found: Sequence[Found]) -> str:
    """Return the fastest way at each number of ranks, as text."""
    by_ranks: dict[int, list[Found]] = {}
    for labelled in found:
        by_ranks.setdefault(labelled.prediction.way.ranks, []).append(labelled)
    fastest = [f"{n} ranks {_first(group)}" for n, group in sorted(by_ranks.items())]
    return "fastest, as modelled: " + "; ".join(fastest)


def _first(found: Sequence[Found]) -> str:
    """Return the label of the fastest one, or of all that are equal to it."""
    fastest_s = min(labelled.prediction.epoch_s for labelled in found)
    return " or ".join(labelled.label for labelled in found if labelled.prediction.epoch_s < SAME * fastest_s)


def checks(found: Sequence[Check]) -> str:
    """Format predicted beside measured seconds."""
    rows = [["what", "ranks", "hosts", "predicted s", "measured s", "error", ""]]
    for check in found:
        seconds = _seconds(check.predicted_s), _seconds(check.measured_s)
        rows.append([check.what, str(check.ranks), str(check.hosts), *seconds, f"{check.error:+.0%}", ""])
    return aligned(rows)


def error_line(found: Sequence[Check]) -> str:
    """Return the errors on a machine's epochs, as text."""
    if not found:
        return "error on epochs of this machine: nothing of it was ever measured (--check, on the machine itself)"
    errors = [abs(check.error) for check in found]
    right, pairs = order(found)
    ordering = f"; {right} of {pairs} pairs in the right order where they differ by over 10 %" if pairs else ""
    return (
        f"error on {len(errors)} measured epochs of this machine: median {median(errors):.0%}, largest "
        f"{max(errors):.0%}{ordering}\n{learned.told(found)}"
    )


def order(found: Sequence[Check]) -> tuple[int, int]:
    """Return the number of pairs of the same model, ranks and link predicted in the right order, and that of all.

    Pairs with measured seconds that differ by 10 % or less are not counted.
    """
    right = pairs = 0
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            same = _circumstances(a) == _circumstances(b)
            if same and a.what != b.what and max(a.measured_s, b.measured_s) > 1.1 * min(a.measured_s, b.measured_s):
                pairs += 1
                right += (a.predicted_s < b.predicted_s) == (a.measured_s < b.measured_s)
    return right, pairs


def _circumstances(of: Check) -> tuple[list[str], str, int, int]:
    """Return the properties that two comparable ways share: model, batch, link, ranks and hosts."""
    model, batch, *_, last = of.what.split(", ")
    return [model, batch], last if last.endswith("Gb/s") else "", of.ranks, of.hosts


def known_lines() -> list[str]:
    """Return the errors on published measurements on a Knights Landing, as text."""
    figures = woo()
    errors = [abs(figure.error) for figure in figures if not figure.calibrates]
    rows = [["Knights Landing (Woo et al. 2020), buffer, host", "ranks", "measured", "modelled", "error", ""]]
    for figure in figures:
        error = "calibrates the model" if figure.calibrates else f"{figure.error:+.0%}"
        cells = (f"{value:.3g} {figure.unit}" for value in (figure.measured, figure.predicted))
        rows.append([figure.what, str(figure.ranks), *cells, error, ""])
    return [f"error on tables of others: median {median(errors):.0%}", aligned(rows)]


def machine(found: Machine, path: str) -> str:
    """Return the measured figures of this machine, as text."""
    tier = found.tier(None)
    return (
        f"{found.title}: {found.gflops.value:.0f} GFLOP/s a core, {tier.gbps.value:.1f} GB/s, messages of "
        f"{found.latency_us.value:.2f} us; {len(found.exchanges)} exchanges measured\n{path}"
    )


def plain(asked: Asked, found: Sequence[Found]) -> dict[str, Any]:
    """Return predictions and their errors for JSON."""
    work, machine = asked.job.work, asked.job.machine
    rows = []
    for labelled in found:
        p = labelled.prediction
        split = {key: getattr(p, field) * p.factor for key, field in PARTS.items()}
        rows.append(
            {"label": labelled.label, "n_ranks": p.way.ranks, "nodes": p.way.nodes, "threads": p.way.threads,
             "epoch_s": p.epoch_s, "steps": p.steps, "split": split, "measured": list(p.measured),
             "notes": list(p.notes)}
        )  # fmt: skip
    pairs = [
        {"what": c.what, "n_ranks": c.ranks, "predicted": c.predicted_s, "measured": c.measured_s, "of": "epochs"}
        for c in machine.checks
    ]
    pairs += [
        {"what": k.what, "n_ranks": k.ranks, "predicted": k.predicted, "measured": k.measured, "of": "Woo et al. 2020"}
        for k in woo()
        if not k.calibrates and k.unit == "s"
    ]
    return {"bench": "predict", "label": "modelled", "model": work.model, "n_train": work.n_train,
            "batch_size": work.batches[0], "machine": machine.title, "load": asked.load.plain,
            "profile_load": machine.load, "rows": rows, "pairs": pairs}  # fmt: skip
