"""Assembly of the page from paths (:func:`report`)."""

from collections.abc import Sequence

from psframe.errors import UserError, reason
from psframe.record.folder import chosen_output
from psframe.report import (
    backend,
    balance,
    collectives,
    forward,
    lerat,
    page,
    peers,
    places,
    predicted,
    quality,
    read,
    runs,
    scaling,
    tables,
    traces,
    training,
    usage,
)
from psframe.report.html import Section
from psframe.report.read import Found


def report(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the page for the paths, and the notices on it; raise UserError if nothing can be shown."""
    inputs = read.read(paths)
    sections = _sections(inputs)
    notices = list(dict.fromkeys(inputs.notices))
    if not sections:
        why = "; ".join(notices[:4]) or "it holds nothing that was measured"
        raise UserError(f"psframe.report must be given runs or benches, got nothing that can be shown ({why})")
    return page.whole(sections, notices, _shown(inputs)), notices


def _sections(found: Found) -> list[Section]:
    runs.label(found.runs)
    rows, machines = tables.read(found.tables, found.notices)
    if found.tables and not rows:
        found.notices.append("bench collectives' tables must have rows, got none that is whole")
    usable = [run for run in found.runs if run.records or run.config]
    sections = [
        *runs.sections(usable, found.notices),
        *training.sections(usable),
        *balance.sections(usable),
        *quality.sections(usable),
        *scaling.sections(usable),
        *places.sections(usable),
        *usage.sections(found.runs),
        *collectives.sections(rows, machines),
        *lerat.sections(found.benches.get("threads", []), found.notices),
        *forward.sections(found.benches.get("forward", [])),
        *peers.sections(found.benches.get("peers", [])),
        *backend.sections(found.benches.get("torch", []), found.benches.get("torch_record", [])),
        *predicted.sections(found.benches.get("predict", [])),
        *traces.sections(found.runs),
    ]
    for kind in found.benches:
        if not any(section.name == kind for section in sections):
            found.notices.append(f"a file of bench {kind} must have rows, got none that is whole")
    return sections


def _shown(found: Found) -> str:
    n_benches = sum(map(len, found.benches.values())) + len(found.tables)
    words = [f"{n} {name}{'s' if n > 1 else ''}" for n, name in ((len(found.runs), "run"), (n_benches, "bench")) if n]
    return " and ".join(words).replace("benchs", "benches")


def write(name: str, made: str) -> None:
    """Write a page; raise UserError on failure."""
    try:
        with chosen_output(name) as file:
            file.write(made)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out must be a file that can be written, got {printable(name)!r} ({reason(error)}); give another"
        ) from None


def printable(name: str) -> str:
    """Return a path that any terminal can print."""
    return name.encode("utf-8", "replace").decode()
