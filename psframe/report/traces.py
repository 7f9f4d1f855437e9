"""Section on traces (:func:`sections`): their files, and the way to open them."""

from collections.abc import Sequence

from psframe.report.html import Section, paragraph, table
from psframe.report.read import Run
from psframe.report.values import size, text


def sections(runs: Sequence[Run]) -> list[Section]:
    rows = [[run.label, text(str(run.path / "trace.json"), 300), size(run.traced)] for run in runs if run.traced]
    if not rows:
        return []
    body = paragraph(
        "What every rank did when is in these files. Open ui.perfetto.dev (or chrome://tracing) in a browser and drop "
        "the file there; it is read in the browser and sent nowhere."
    )
    return [Section("trace", "Traces", body + table("table-traces", "Traces.", ["<run", "<file", "size"], rows))]
