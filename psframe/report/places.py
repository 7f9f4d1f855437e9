"""Section on placement (:func:`sections`): pages of each role by NUMA node."""

from collections.abc import Sequence

from psframe.report.charts import heat
from psframe.report.html import Section, figure, note, table
from psframe.report.read import Run
from psframe.report.values import NONE, number, table_of, text

MOST = 12
MOST_ROLES, MOST_PLACES, MOST_ROWS = 16, 4096, 200  # a file may hold anything
ROLES = ("parameters", "gradients", "optimizer", "activations", "data", "exchange")


def sections(runs: Sequence[Run]) -> list[Section]:
    with_pages = [run for run in runs if _pages(run)]
    if not with_pages:
        return []
    nodes = list(dict.fromkeys(node for run in with_pages for counts in _pages(run).values() for node in counts))
    nodes.sort(key=lambda node: (not node.isdecimal(), int(node) if node.isdecimal() and len(node) < 9 else 0))
    drawings: list[str] = []
    rows: list[list[str]] = []
    for run in with_pages:
        pages = _pages(run)
        cells = [[counts.get(node, 0.0) for node in nodes] for counts in pages.values()]
        names = [f"node {node}" if node.isdecimal() else node for node in nodes]
        if len(drawings) < MOST:
            drawings.append(heat("Pages by role and NUMA node", list(pages), names, cells, run.label))
        requested, placed = table_of(run.last.get("placement")), table_of(run.last.get("placed"))
        for place in sorted(placed, key=lambda place: (_order(place), place))[:MOST_ROWS]:
            share = number(placed[place], 0)
            if share is not None:
                rows.append([run.label, text(place, 80), text(requested.get(place)) or NONE, f"{100 * share:.1f} %"])
    caption = (
        "Pages of all ranks by role and NUMA node, as the kernel reported them after the last epoch; a cell is as dark "
        "as its share of its role's pages."
    )
    more = f"The first {MOST} of {len(with_pages)} runs are drawn." if len(with_pages) > MOST else ""
    body = figure("figure-pages", caption, drawings, small=len(nodes) <= 3) + note(more)
    if rows:
        table_caption = (
            "Of roles and tensors that were asked to be somewhere: the worst rank's share of pages that are there."
        )
        body += table("table-placed", table_caption, ["<run", "<role or tensor", "<placement", "placed"], rows)
    else:
        body += note("No role was asked to be on particular NUMA nodes, so there is no share that is placed as asked.")
    return [Section("placement", "Where memory lies", body)]


def _pages(run: Run) -> dict[str, dict[str, float]]:
    """Return pages by role and node, with those of its tensors."""
    by_role: dict[str, dict[str, float]] = {}
    for place, by_node in list(table_of(run.last.get("pages")).items())[:MOST_PLACES]:
        counts = {text(node, 12): n for node, n in list(table_of(by_node).items())[:32]}
        role = text(str(place).partition("/")[0], 24)
        if role not in by_role and len(by_role) == MOST_ROLES:
            continue
        for node, value in counts.items():
            if n := number(value, 0):
                of_role = by_role.setdefault(role, {})
                of_role[node] = of_role.get(node, 0.0) + n
    return {role: by_role[role] for role in sorted(by_role, key=_order)}


def _order(place: str) -> int:
    role = str(place).partition("/")[0]
    return ROLES.index(role) if role in ROLES else len(ROLES)
