"""Charts from marks: :func:`lines`, :func:`bars`, :func:`histogram`, :func:`heat`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log10

from psframe.report import scale, svg
from psframe.report.scale import Axis
from psframe.report.values import said

WIDTH, HEIGHT = 460.0, 280.0
SMALL_WIDTH, SMALL_HEIGHT = 272.0, 250.0
MIN_LABEL = 18.0  # height of a row that has a label


@dataclass(frozen=True)
class Style:
    """Look of a line; ``shape`` None: without marks; ``colour`` -1: grey."""

    colour: int = 0
    dash: int = 0
    shape: int | None = 0


@dataclass(frozen=True)
class Series:
    """A line: points, and the spread of each.

    Attributes
    ----------
    label : str
    points : sequence of (float, float)
    style : Style
    spread : sequence of (float, float, float)
        x, low and high.
    thin : bool
    ideal : bool
        True for the theoretical best; False for a measurement.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: Style = Style()
    spread: Sequence[tuple[float, float, float]] = ()
    thin: bool = False
    ideal: bool = False

    @property
    def kind(self) -> str:
        name = "ideal" if self.ideal else "thin" if self.thin else "line"
        return f"{name} {'grey' if self.style.colour < 0 else f'c{self.style.colour}'}"


def styled(number: int) -> Style:
    """Return the colour, dash and shape of a series by its number: the first 24 all look different."""
    return Style(number % svg.N_COLOURS, number // svg.N_COLOURS % 3, number % 4)


def lines(name: str, series: Sequence[Series], x: Axis, y: Axis, small: bool = False, heading: str = "") -> str:
    """Return a chart of lines, without points that a logarithmic axis cannot hold."""
    width, height = (SMALL_WIDTH, SMALL_HEIGHT) if small else (WIDTH, HEIGHT)
    plotted = [(s, [(a, b) for a, b in s.points if (a > 0 or not x.base) and (b > 0 or not y.base)]) for s in series]
    all_points = [point for _, points in plotted for point in points]
    ends = [v for s, _ in plotted for _, low, high in s.spread for v in (low, high)]
    top = 52.0 if heading else 30.0
    vertical = scale.place(y, [*(b for _, b in all_points), *ends], height - 42, top)
    left = 14 + 6.3 * max(3, *(len(tick) for _, tick in vertical.ticks))
    across = scale.place(x, [a for a, _ in all_points], left, width - 14, 5 if small else 8)
    body = [svg.label(4, 18, svg.fitted(heading, width, 7.9), "heading")] if heading else []
    body += svg.axes(across, vertical)
    for curve, points in sorted(plotted, key=lambda pair: not pair[0].ideal):
        body += _line(curve, points, across, vertical)
    return svg.drawing(width, height, f"{name} {heading}".strip(), body)


def _line(each: Series, points: Sequence[tuple[float, float]], x: scale.Scale, y: scale.Scale) -> list[str]:
    body = []
    if len(points) > 1 or each.style.shape is None:
        body.append(svg.path([(x(a), y(b)) for a, b in points], each.kind, each.style.dash) if points else "")
    if each.ideal and points:
        at, end = points[-1]
        body.append(svg.label(min(x(at), x.end) - 6, max(y(end), y.end) + 12, "ideal", "note", "end"))
    for at, low, high in each.spread:
        if (at > 0 or not x.axis.base) and (low > 0 or not y.axis.base):
            body.append(svg.line(x(at), y(low), x(at), y(high), f"whisker c{max(0, each.style.colour)}"))
    if each.style.shape is not None and not each.ideal:
        for a, b in points:
            title = f"{each.label}\n{x.axis.title}: {said(a)}\n{y.axis.title}: {said(b, 4)}"
            body.append(svg.marker(x(a), y(b), each.style.shape, f"c{max(0, each.style.colour)}", title))
    return body


@dataclass(frozen=True)
class Bar:
    """A bar of parts, each with length, class and name, and the text at its end."""

    parts: Sequence[tuple[float, str, str]]
    end: str = ""
    spread: tuple[float, float] | None = None

    @property
    def total(self) -> float:
        return sum(length for length, _, _ in self.parts)


@dataclass(frozen=True)
class Group:
    """Bars under one heading."""

    heading: str
    bars: Sequence[Bar] = field(default_factory=list)


def bars(name: str, groups: Sequence[Group], axis: Axis) -> str:
    """Return horizontal bars, each group's below its heading, so that long headings fit on small screens."""
    room, thick, gap = 20.0, 14.0, 10.0
    heights = [room + (thick + 3) * len(group.bars) + gap for group in groups]
    bottom = 8 + sum(heights)
    longest = [v for group in groups for bar in group.bars for v in (bar.total, *(bar.spread or ()))]
    x = scale.place(axis, longest, 8, WIDTH - 62, 6)
    body = [svg.line(x(value), 8, x(value), bottom, "grid") for value, _ in x.ticks]
    body += [svg.label(x(value), bottom + 16, tick, "tick", "middle") for value, tick in x.ticks]
    body.append(svg.label(x.end, bottom + 34, axis.title, "title", "end"))
    y = 8.0
    for group, height in zip(groups, heights, strict=True):
        body.append(svg.label(x.start, y + 14, svg.fitted(group.heading, WIDTH - 70), "name"))
        for number, bar in enumerate(group.bars):
            body += _bar(group.heading, bar, x, y + room + number * (thick + 3), thick)
        y += height
    return svg.drawing(WIDTH, bottom + 42, name, body)


def _bar(heading: str, bar: Bar, x: scale.Scale, y: float, thick: float) -> list[str]:
    body, at = [], 0.0
    for length, kind, title in bar.parts:
        shown = f"{heading}\n{title}: {said(length)} {x.axis.title}"
        body.append(svg.rectangle(x(at), y, x(at + length) - x(at), thick, kind, shown))
        at += length
    end = x(at)
    if bar.spread:
        low, high = (x(v) for v in bar.spread)
        body += [svg.line(low, y + thick / 2, high, y + thick / 2, "range")]
        body += [svg.line(v, y + 4, v, y + thick - 4, "range") for v in (low, high)]
        end = max(end, high)
    return [*body, svg.label(end + 6, y + thick - 3, bar.end, "value")]


def histogram(name: str, bins: Sequence[tuple[str, float]], x_title: str, y: Axis, heading: str) -> str:
    """Return a chart of columns, one per bin."""
    width, height, top = SMALL_WIDTH, 210.0, 52.0
    vertical = scale.place(y, [count for _, count in bins], height - 42, top, 5)
    left = 14 + 6.3 * max(len(tick) for _, tick in vertical.ticks)
    pitch = (width - 14 - left) / max(1, len(bins))
    wide = min(pitch * 0.82, 46)
    body = [svg.label(4, 18, svg.fitted(heading, width, 7.9), "heading")]
    body += [svg.line(left, vertical(value), width - 14, vertical(value), "grid") for value, _ in vertical.ticks]
    body += [svg.label(left - 7, vertical(value) + 4, tick, "tick", "end") for value, tick in vertical.ticks]
    stride = max(1, -(-len(bins) * 30 // int(width - left)))
    for number, (label, count) in enumerate(bins):
        middle = left + (number + 0.5) * pitch
        body.append(
            svg.rectangle(
                middle - wide / 2,
                vertical(count),
                wide,
                vertical.start - vertical(count),
                "fill c0",
                f"{label}: {said(count)}",
            )
        )
        if number % stride == 0:
            body.append(svg.label(middle, vertical.start + 17, label, "tick", "middle"))
    body += [svg.line(left, vertical.start, width - 14, vertical.start, "axis")]
    body += [svg.label(width - 14, height - 8, x_title, "title", "end"), svg.label(4, top - 13, y.title, "title")]
    return svg.drawing(width, height, f"{name} {heading}".strip(), body)


def heat(
    name: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float]],
    heading: str,
    counted: tuple[str, str] = ("role", "pages"),
) -> str:
    """Return a heat map: a cell is as dark as its share of its row, and shows its number if there is room.

    Parameters
    ----------
    counted : (str, str)
        Kind of a row, and that of the things counted.
    """
    left, top = 96.0, 62.0
    width = SMALL_WIDTH if len(columns) <= 3 else WIDTH
    wide = min(64.0, (width - left - 8) / max(1, len(columns)))
    high = min(26.0, wide)
    stride = max(1, ceil(MIN_LABEL / high))  # of the labels of many narrow rows and columns
    body = [svg.label(4, 18, svg.fitted(heading, width, 7.9), "heading"), svg.label(4, top - 8, counted[0], "title")]
    for number, column in list(enumerate(columns))[::stride]:
        fitted = svg.fitted(column, wide * stride, 6)
        body.append(svg.label(left + (number + 0.5) * wide, top - 8, fitted, "tick", "middle"))
    for down, (row, values) in enumerate(zip(rows, cells, strict=True)):
        y = top + down * high
        if down % stride == 0:
            body.append(svg.label(4, y + high / 2 + 4, svg.fitted(row, left - 8), "name"))
        total = sum(values) or 1.0
        for across, value in enumerate(values):
            share = value / total
            title = f"{row}, {columns[across]}: {value:,.0f} {counted[1]}, {share:.1%} of the {counted[0]}'s"
            body += _cell(left + across * wide, y, (wide, high), value, share, title)
    return svg.drawing(width, top + high * len(rows) + 10, f"{name} {heading}", body)


def _cell(x: float, y: float, size: tuple[float, float], value: float, share: float, title: str) -> list[str]:
    wide, high = size
    if high < MIN_LABEL:
        gap, kind = 0.0, ""
    else:
        gap, kind = 1.0, "on" if share > 0.8 else "mid" if share > 0.6 else "off"  # keeps the number readable
    if not kind and not value:  # of thousands of cells
        return []
    style = f' style="fill-opacity:{0.06 + 0.94 * share:.2f}"'
    body = [svg.rectangle(x + gap, y + gap, wide - 2 * gap, high - 2 * gap, "heat", title, style)]
    if kind and value:
        body.append(svg.label(x + wide / 2, y + high / 2 + 4, compact(value), kind, "middle"))
    return body


def compact(value: float) -> str:
    """Return a count in about five characters."""
    power = int(log10(value)) // 3 if value >= 10000 else 0
    power = min(power, 5)
    return f"{value:,.0f}" if not power else f"{value / 1000**power:.3g}{' kMGTP'[power]}"
