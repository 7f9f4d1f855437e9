"""Placement of a role's tensors one by one (:class:`ByTensor`), by patterns of their names."""

from collections.abc import Mapping
from typing import Any

from psframe.errors import UserError
from psframe.memory.auto import Auto
from psframe.memory.pages import RESERVED_BYTES, Policy
from psframe.memory.placement import BasePlacement, Placement, bound, placement_of
from psframe.memory.process_site import Site

#: roles whose memory has tensors; of the others, all lies together
ROLES = ("parameters", "gradients", "optimizer", "activations")


class ByTensor(BasePlacement):
    """Placement of each tensor by the first pattern that matches its name (:mod:`psframe.memory.tensor_names`).

    Parameters
    ----------
    default : str or mapping
        Placement of tensors that no pattern matches, and of memory that belongs to no tensor.
    tensors : mapping of str to str or mapping
        Placement by pattern.
    """

    def __init__(self, *, default: str | Mapping[str, Any] = "default", tensors: Mapping[str, Any] | None = None):
        super().__init__()
        self.default = _made("default", default)
        self.tensors = {pattern: _made(pattern, spec) for pattern, spec in (tensors or {}).items()}

    def policy(self, site: Site, shared: bool) -> Policy:
        return self.default.policy(site, shared)


def _made(key: str, spec: Any) -> Placement:
    """Return the placement of one pattern; UserError if it is none, or has pages of its own size."""
    if not isinstance(spec, str | Mapping):
        raise UserError(f"{key} must be a placement, got {spec!r}; name, say, hbw")
    placement = placement_of(bound(spec, key))
    if isinstance(placement, ByTensor | Auto):
        raise UserError(f"{key} must be one place, got {spec!r}, which is by tensor itself; name, say, hbw")
    if RESERVED_BYTES.get(getattr(placement, "huge_pages", "none")):
        raise UserError(
            f"{key} must have pages of the size that the role's other tensors have, got huge_pages: "
            f"{getattr(placement, 'huge_pages', '')}; give none or transparent, or place the role as a whole"
        )
    return placement
