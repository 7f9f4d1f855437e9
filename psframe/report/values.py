"""Values of files, made safe to compute with (:func:`number`), and numbers formatted for readers (:func:`said`)."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

NONE = "–"  # a table's cell without a number
LARGEST, SMALLEST = 1e18, 1e-15  # beyond these, a number is no measurement

Spread = tuple[float, float, float]  #: median, low, high


def number(value: Any, least: float = -LARGEST) -> float | None:
    """Return a finite number of at least ``least``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= LARGEST:
        return None
    return float(value) if abs(value) > SMALLEST else 0.0


def positive(value: Any) -> float | None:
    """Return a number above 0; None for anything else."""
    return number(value, least=0) or None


def parsed(text: Any) -> float | None:
    """Return the number that a text holds; None if it holds none."""
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return number(value) if isfinite(value) else None


def text(value: Any, most: int = 120) -> str:
    """Return a value as one line of at most ``most`` characters."""
    shown = value[: 4 * most] if isinstance(value, str) else "" if value is None else short(value)
    shown = " ".join(shown.split()).encode("utf-8", "replace").decode()
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def short(value: Any, depth: int = 3) -> str:
    """Return a value of YAML or JSON in its flow style, of a bounded depth and length."""
    if depth == 0 and isinstance(value, dict | list | tuple):
        return "…"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)}: {short(v, depth - 1)}" for k, v in list(value.items())[:20]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(short(v, depth - 1) for v in value[:20]) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return str(value) if number(value) is not None else "a number out of range"
    return str(value)[:200]


def table_of(value: Any) -> Mapping[str, Any]:
    """Return a value that is a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a value that is a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def numbers(records: Iterable[Mapping[str, Any]], key: str, least: float = 0) -> list[float]:
    """Return a key's numbers, without invalid ones."""
    return [value for record in records if (value := number(record.get(key), least)) is not None]


def spread(value: Any) -> Spread | None:
    """Return median, low and high of a mapping that has at least a median."""
    mapping = table_of(value)
    middle = positive(mapping.get("median"))
    if middle is None:
        return None
    low, high = number(mapping.get("low"), 0), number(mapping.get("high"), 0)
    return middle, min(middle, middle if low is None else low), max(middle, middle if high is None else high)


def said(value: float | None, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits."""
    if value is None:
        return NONE
    return f"{value:,.{decimals([value], digits)}f}" if value == 0 or 1e-4 <= abs(value) < 1e9 else f"{value:.2e}"


def column(values: Sequence[float | None], digits: int = 3) -> list[str]:
    """Return the numbers of one column, all with the same decimals."""
    magnitudes = sorted(abs(v) for v in values if v)
    if magnitudes and (magnitudes[0] < 1e-4 or magnitudes[-1] >= 1e9):
        return [said(v, digits) for v in values]
    places = decimals(magnitudes[: max(1, len(magnitudes) // 2)][-1:], digits)
    return [NONE if v is None else f"{v:,.{places}f}" for v in values]


def decimals(values: Sequence[float], digits: int) -> int:
    """Return the number of decimals that show ``digits`` digits of the first non-zero value."""
    first = next((abs(v) for v in values if v), 1.0)
    return max(0, min(6, digits - 1 - floor(log10(first))))


def between(found: Spread | None, scale: float = 1.0) -> str:
    """Return low and high of a spread as text."""
    if found is None:
        return NONE
    low, high = column([found[1] * scale, found[2] * scale])
    return f"{low}–{high}"


def seconds(value: float) -> str:
    """Return seconds in a suitable unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit * 0.9995:
            return f"{value / unit:,.3g} {name}" if value / unit < 1000 else f"{value / unit:,.0f} {name}"
    return f"{value * 1e9:,.3g} ns" if value else "0 s"


def size(n_bytes: float) -> str:
    """Return bytes in a suitable decimal unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:,.4g} {name}"
    return f"{n_bytes:,.0f} bytes"
