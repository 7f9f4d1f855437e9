"""Section on placement (:func:`sections`): pages of each role by NUMA node."""

from collections.abc import Sequence

from psframe.report.charts import heat
from psframe.report.html import Section, figure, note, table
from psframe.report.read import Run
from psframe.report.values import NONE, number, table_of, text

MOST = 12
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
        for role in pages:
            share = number(placed.get(role), 0)
            if share is not None:
                rows.append([run.label, role, text(requested.get(role)) or NONE, f"{100 * share:.1f} %"])
    caption = (
        "Pages of all ranks by role and NUMA node, as the kernel reported them after the last epoch; a cell is as dark "
        "as its share of its role's pages."
    )
    more = f"The first {MOST} of {len(with_pages)} runs are drawn." if len(with_pages) > MOST else ""
    body = figure("figure-pages", caption, drawings, small=len(nodes) <= 3) + note(more)
    if rows:
        table_caption = "Of the roles that were asked to be somewhere: the worst rank's share of pages that are there."
        body += table("table-placed", table_caption, ["<run", "<role", "<placement", "placed"], rows)
    else:
        body += note("No role was asked to be on particular NUMA nodes, so there is no share that is placed as asked.")
    return [Section("placement", "Where memory lies", body)]


def _pages(run: Run) -> dict[str, dict[str, float]]:
    """Return pages by role and node."""
    by_role = {}
    for role, by_node in list(table_of(run.last.get("pages")).items())[:16]:
        counts = {text(node, 12): n for node, n in list(table_of(by_node).items())[:32]}
        shown = {node: n for node, value in counts.items() if (n := number(value, 0))}
        if shown:
            by_role[text(role, 24)] = shown
    return {
        role: by_role[role]
        for role in sorted(by_role, key=lambda role: ROLES.index(role) if role in ROLES else len(ROLES))
    }
