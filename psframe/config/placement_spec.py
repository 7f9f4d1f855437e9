"""Placements as a config spells them: the roles of memory, and the short forms of a placement."""

from collections.abc import Mapping
from typing import Any

#: what memory is for; each has a placement of its own
ROLES = ("parameters", "gradients", "optimizer", "activations", "data", "exchange")


def spelled_out(spec: Any) -> Any:
    """Return a placement as a mapping with its ``name``: ``hbw`` and ``{numa: [1]}`` are short for one."""
    if isinstance(spec, str):
        return {"name": spec}
    if isinstance(spec, Mapping) and "name" not in spec:
        short = [name for name in ("numa", "interleave") if name in spec]
        if len(short) == 1:
            others = {key: value for key, value in spec.items() if key != short[0]}
            return {"name": short[0], "nodes": spec[short[0]], **others}
    return dict(spec) if isinstance(spec, Mapping) else spec
