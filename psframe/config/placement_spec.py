"""Placement syntax of a config: the roles of memory (``ROLES``), and short forms (:func:`spelled_out`)."""

from collections.abc import Mapping
from typing import Any

from psframe.errors import UserError

#: uses of memory, each with its own placement
ROLES = ("parameters", "gradients", "optimizer", "activations", "data", "exchange")
#: placement of a role's tensors one by one, and its keys: one of all that no pattern matches, and patterns
BY_TENSOR, REST, PATTERNS = "by_tensor", "default", "tensors"
#: placements with a short form, and the key that it stands for
SHORT = {"numa": "nodes", "interleave": "nodes", "weighted": "weights"}


def section(spec: Any) -> Any:
    """Expand the section's short form ``auto``: all roles but the data, of which a step reads a few.

    UserError if the section is itself a placement, as ``hbw``.
    """
    if spec == "auto":
        return dict.fromkeys((role for role in ROLES if role != "data"), "auto")
    if isinstance(spec, str) or (isinstance(spec, Mapping) and not {"name", REST, *SHORT}.isdisjoint(spec)):
        raise UserError(
            f"placement must be auto, or have a placement for each role, got {spec!r}; write, say, "
            f"placement.parameters=hbw; the roles are {', '.join(ROLES)}"
        )
    return spec


def spelled_out(spec: Any) -> Any:
    """Expand a placement's short form, ``hbw`` or ``{numa: [1]}``, to a mapping with its ``name``.

    ``{default: ddr, conv1: hbw}`` places tensors one by one.
    """
    if isinstance(spec, str):
        return {"name": spec}
    if isinstance(spec, Mapping) and "name" not in spec:
        if REST in spec:
            patterns = {key: value for key, value in spec.items() if key != REST}
            return {"name": BY_TENSOR, REST: spec[REST], PATTERNS: patterns}
        short = [name for name in SHORT if name in spec]
        if len(short) == 1:
            others = {key: value for key, value in spec.items() if key != short[0]}
            return {"name": short[0], SHORT[short[0]]: spec[short[0]], **others}
    return dict(spec) if isinstance(spec, Mapping) else spec
