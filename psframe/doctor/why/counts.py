"""Counts of an incident's file, and their growth (:func:`nested`, :func:`grown`): nothing in the file is trusted."""

from typing import Any

MOST = 1e18  # largest number that is believed


def number(value: Any) -> float:
    """Return a number of a file; 0 for anything else, and for one that no machine counts: JSON's may be infinite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MOST else 0.0


def nested(mapping: Any, *keys: str) -> float:
    """Return a number within nested mappings of a file; 0 if it is not there."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, dict) else None
    return number(mapping)


def grown(before: Any, after: Any, *keys: str) -> float:
    """Return how much :func:`nested` is larger after than before."""
    return nested(after, *keys) - nested(before, *keys)


def grown_in_groups(before: Any, after: Any) -> list[dict[str, float]]:
    """Return how much each count has grown, for each cgroup that is in a machine's state before and after."""
    earlier, later = _groups(before), _groups(after)
    return [
        {name: grown(earlier[place], counts, name) for name in counts}
        for place, counts in later.items()
        if isinstance(counts, dict) and place in earlier
    ]


def _groups(machine: Any) -> dict[str, Any]:
    cgroup = machine.get("cgroup") if isinstance(machine, dict) else None
    groups = cgroup.get("groups") if isinstance(cgroup, dict) else None
    return groups if isinstance(groups, dict) else {}


def most_in_a_group(before: Any, after: Any, name: str) -> float:
    """Return how much a count of the cgroups has grown, where it has grown the most; 0 if nothing is known."""
    return max((group.get(name, 0.0) for group in grown_in_groups(before, after)), default=0.0)
