"""Charts of the report, of which tests look at what is drawn."""

import pytest

from psframe.report import forward, training


@pytest.fixture
def drawn(monkeypatch):
    """Points of curves by the chart's title and their label."""
    charts = {}

    def lines(title, series, x, y):
        charts[title] = {one.label: list(one.points) for one in series}
        return f"<svg>{title}</svg>"

    for module in (forward, training):
        monkeypatch.setattr(module, "lines", lines)
    return charts
