"""Marks of figures as SVG text; all text from files goes through :func:`esc`."""

from collections.abc import Sequence
from html import escape

from psframe.report.scale import Scale
from psframe.report.values import text

N_COLOURS = 8
DASHES = ("", "6 3", "2 3")


def esc(value: object) -> str:
    """Return any value as text that HTML and SVG can hold."""
    plain = str(value).encode("utf-8", "replace").decode()
    return escape("".join(c if c >= " " or c in "\n\t" else " " for c in plain), quote=True)


def drawing(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """Return a figure that fills the available width, up to 1.3 times its own."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{width * 1.3:.0f}px" role="img" '
        f'aria-label="{esc(title)}" xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def label(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text; ``kind``: its class."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{esc(said)}</text>'


def fitted(said: str, width: float, em: float = 6.1) -> str:
    """Return a text cut to about ``width`` units."""
    return text(said, max(4, int(width / em)))


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def path(points: Sequence[tuple[float, float]], kind: str, dash: int = 0) -> str:
    """Return a line through points."""
    style = f' stroke-dasharray="{DASHES[dash]}"' if dash else ""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"{style}/>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, title: str = "", style: str = "") -> str:
    hover = f"<title>{esc(title)}</title>" if title else ""
    size = f'width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} class="{kind}"{style}>{hover}</rect>'


def marker(x: float, y: float, shape: int, kind: str, title: str) -> str:
    """Return a mark with ``title`` as its tooltip."""
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>',
        f'<rect x="{x - 3.1:.1f}" y="{y - 3.1:.1f}" width="6.2" height="6.2"/>',
        f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5-4.5 4.5-4.5-4.5z"/>',
        f'<path d="M{x:.1f} {y - 4.2:.1f}l4.3 7.4h-8.6z"/>',
    )
    hover = f'<title>{esc(title)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="9" class="hit"/>' if title else ""
    return f'<g class="mark {kind}">{hover}{shapes[shape % len(shapes)]}</g>'


def axes(x: Scale, y: Scale) -> list[str]:
    """Return gridlines, ticks and titles; y's title stands above its axis, to be readable."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    body = [line(left, y(value), right, y(value), "grid") for value, _ in y.ticks]
    body += [label(left - 7, y(value) + 4, tick, "tick", "end") for value, tick in y.ticks]
    body.append(line(left, bottom, right, bottom, "axis"))
    for value, tick in x.ticks:
        body += [
            line(x(value), bottom, x(value), bottom + 4, "axis"),
            label(x(value), bottom + 17, tick, "tick", "middle"),
        ]
    body.append(label(right, bottom + 34, x.axis.title, "title", "end"))
    body.append(label(4, top - 13, y.axis.title, "title"))
    return body


def swatch(kind: str, dash: int, shape: int | None) -> str:
    """Return the symbol of a line in a legend."""
    dots = "" if shape is None else marker(15, 7, shape, kind.rsplit(maxsplit=1)[-1], "")
    drawn = path([(1, 7), (29, 7)], kind, dash)
    return f'<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true">{drawn}{dots}</svg>'


def patch(kind: str) -> str:
    """Return the symbol of a bar in a legend."""
    return f'<svg class="patch" viewBox="0 0 14 14" aria-hidden="true">{rectangle(1, 1, 12, 12, kind)}</svg>'
