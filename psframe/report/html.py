"""Parts of the page: sections (:class:`Section`), figures with legends, tables. All texts are escaped here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psframe.report import svg
from psframe.report.charts import Series
from psframe.report.svg import esc
from psframe.report.values import text


@dataclass(frozen=True)
class Section:
    """A section of the page; ``name`` is its anchor."""

    name: str
    title: str
    body: str


def paragraph(said: str, kind: str = "") -> str:
    return f'<p class="{kind}">{esc(said)}</p>' if kind else f"<p>{esc(said)}</p>"


def heading(said: str) -> str:
    return f"<h3>{esc(said)}</h3>"


def note(said: str) -> str:
    return paragraph(said, "note") if said else ""


def table(name: str, caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: str = "") -> str:
    """Return a table that scrolls by itself if it is wide.

    Parameters
    ----------
    columns : sequence of str
        Headings; a leading ``<`` marks a column of words, aligned left, a leading ``*`` a paper's values.
    """
    kinds = [{"<": "word", "*": "paper"}.get(column[:1], "") for column in columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{esc(column.lstrip("<*"))}</th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    lines: list[str] = []
    above = ""
    for row in rows:
        cells = "".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True))
        lines.append(f'<tr class="next">{cells}</tr>' if lines and row[0] != above else f"<tr>{cells}</tr>")
        above = row[0]
    grouped = "" if sum("next" in line for line in lines) == len(lines) - 1 else ' class="grouped"'
    body = "".join(lines)
    inner = f"<table{grouped}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(text(caption))}">{inner}</div>'
    return f'<div class="table" id="{name}"><p class="caption">{esc(caption)}</p>{scroll}{note(notes)}</div>'


def _cell(said: str, kind: str) -> str:
    kind = "word long" if kind == "word" and len(said) > 32 else kind
    return f'<td class="{kind}">{esc(said)}</td>'


def figure(name: str, caption: str, drawings: Sequence[str], legend: str = "", small: bool = False) -> str:
    """Return a figure of one or several drawings side by side."""
    kind = ("panels small" if len(drawings) in (1, 2, 4, 7, 8) else "panels small three") if small else "panels"
    inner = "".join(f'<div class="panel">{drawn}</div>' for drawn in drawings)
    return (
        f'<figure id="{name}">{legend}<div class="{kind}">{inner}</div><figcaption>{esc(caption)}</figcaption></figure>'
    )


def pair(*parts: str) -> str:
    """Return parts that stand side by side if there is room."""
    return f'<div class="pair">{"".join(parts)}</div>'


def legend(series: Iterable[Series]) -> str:
    """Return a legend of lines, each once."""
    shown = {curve.label: curve for curve in series if not curve.ideal}
    if len(shown) < 2:
        return ""
    items = (_item(svg.swatch(s.kind, s.style.dash, s.style.shape), label) for label, s in shown.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


def patches(kinds: Iterable[tuple[str, str]]) -> str:
    """Return a legend of bars, from the class and name of each part."""
    return f'<ul class="legend">{"".join(_item(svg.patch(kind), name) for kind, name in kinds)}</ul>'


def _item(drawn: str, said: str) -> str:
    return f"<li>{drawn}<span>{esc(said)}</span></li>"
