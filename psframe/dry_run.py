"""``--dry-run``: the resolved config and the memory it will take, from the very code that would take it."""

import numpy as np

from psframe.assemble import build
from psframe.cluster import Cluster
from psframe.config import to_yaml
from psframe.data import Facts
from psframe.memory.allocator import Allocator
from psframe.plan import Plan


def report(cluster: Cluster, plan: Plan) -> str:
    """Build every part without reading data or touching memory; return the report on rank 0, elsewhere "".

    All ranks must call.
    """
    allocator = Allocator()
    cluster.agree_everywhere(lambda: build(cluster, plan, _untouched(plan.facts), allocator))
    if cluster.node_rank == 0:
        allocator.bytes_by_role["data"] = plan.facts.n_bytes
    roles = cluster.comm.gather(dict(allocator.bytes_by_role))
    if roles is None:
        return ""
    unused = "".join(f"# not used by this choice: {key}\n" for key in plan.unused)
    return f"{to_yaml(plan.resolved)}{unused}\n{memory_table(roles, plan.team.server)}"


def _untouched(facts: Facts) -> dict[str, np.ndarray]:
    arrays = facts.arrays(np.zeros(facts.n_bytes, np.uint8))  # pages that are never touched are never resident
    arrays["moments"][1] = 1
    return arrays


def memory_table(roles: list[dict[str, int]], server: str | None) -> str:
    """Return bytes by rank and role as a table, with one line for neighbouring ranks that keep the same."""
    columns = sorted({role for of_rank in roles for role, n_bytes in of_rank.items() if n_bytes})
    lines = [["ranks", "", *columns, "total"]]
    first = 0
    for end in range(1, len(roles) + 1):
        if end < len(roles) and roles[end] == roles[first]:
            continue
        what = {"dedicated": "server", "colocated": "server, worker"}.get(server or "") if first == 0 else None
        sizes = [roles[first].get(column, 0) for column in columns]
        span = str(first) if end == first + 1 else f"{first}-{end - 1}"
        lines.append([span, what or "worker", *(f"{n_bytes:,}" for n_bytes in [*sizes, sum(sizes)])])
        first = end
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(["bytes by rank and role (a node's data are counted on its first rank)", *table])
