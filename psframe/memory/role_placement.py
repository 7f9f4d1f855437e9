"""Placements of all roles on one rank (:class:`Places`), as requested and as available on this machine."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from psframe import compiled
from psframe.config.placement_spec import ROLES
from psframe.config.registry import Choice
from psframe.errors import UserError
from psframe.memory import pages
from psframe.memory.allocator import Home
from psframe.memory.budget import Demand
from psframe.memory.pages import RESERVED_BYTES, HugePages, Policy, no_huge_pages, populate
from psframe.memory.placement import DDR, Default, MissingMemoryError, Placement, existing
from psframe.memory.process_site import Site

#: the data are one shared segment per machine; memory of the other roles is each rank's own
SHARED = ("data",)


def made(choice: Choice) -> Placement:
    """Return the placement that a config chose; UserError if it is none."""
    try:
        placement = choice()
    except TypeError:  # it requires positional arguments, and placements get none
        placement = None
    except UserError as error:
        raise UserError(f"{choice.section}: {error}") from None
    if not all(hasattr(placement, name) for name in ("policy", "allocate", "bind")):
        raise UserError(
            f"{choice.section} must name a placement, got {choice.name!r}, which is none; "
            "see psframe.memory.placement.Placement"
        )
    return placement


class Places:
    """Placements by role.

    Parameters
    ----------
    choices : mapping of str to Choice
        The requested placements, by role.
    fallback : {'none', 'ddr', 'default'}
        Replacement for memory that does not exist on this machine.

    Attributes
    ----------
    asked, got : dict of str to str
        Names of the requested and actual placements, by role; they differ after a fallback or a spill.
    policies : dict of str to Policy

    Raises
    ------
    UserError
        Requested memory does not exist and there is no fallback, or a placement is invalid.
    """

    def __init__(self, site: Site, choices: Mapping[str, Choice], fallback: str = "none"):
        self.site, self.fallback = site, fallback
        self.asked = {role: choices[role].name for role in ROLES}
        self.got = dict(self.asked)
        self.placements: dict[str, Placement] = {role: made(choices[role]) for role in ROLES}
        self.policies: dict[str, Policy] = {}
        for role in ROLES:
            try:
                self.policies[role] = self._policy(role)
            except MissingMemoryError as error:
                if fallback == "none":
                    raise UserError(f"placement.{role}: {error}") from None
                self._replace(role, fallback)
                site.note(f"placement.{role}={self.asked[role]} fell back to {self.got[role]}: {error}")
            except UserError as error:
                raise UserError(f"placement.{role}: {error}") from None

    def _policy(self, role: str) -> Policy:
        policy = self.placements[role].policy(self.site, role in SHARED)
        if not isinstance(policy, Policy):
            raise UserError(f"a placement's policy must be a psframe.memory.pages.Policy, got {policy!r}; return one")
        n_weights = len(policy.nodes) if policy.mode == "weighted" else 0
        has_weights = len(policy.weights) == n_weights and all(weight > 0 for weight in policy.weights)
        if policy.mode not in compiled.numa.MODES or policy.huge_pages not in RESERVED_BYTES or not has_weights:
            raise UserError(
                "a Policy must have the kernel's modes and page sizes, and positive weights of its nodes if it is "
                f"`weighted`, got {policy}; see its docstring"
            )
        if policy.mode != "default":
            existing(policy.nodes, self.site)
        return policy

    def _replace(self, role: str, name: str) -> None:
        ordinary = name == "ddr" and self.site.topology.ddr
        # transparent huge pages are available on any node, reserved ones perhaps not
        requested = getattr(self.placements[role], "huge_pages", "none")
        huge_pages: HugePages = "transparent" if requested == "transparent" else "none"
        if requested in ("2M", "1G"):
            self.site.note(f"placement.{role} goes without its huge_pages: {requested} where it goes instead")
        self.got[role] = "ddr" if ordinary else "default"
        self.placements[role] = (DDR if ordinary else Default)(huge_pages=huge_pages)
        self.policies[role] = self._policy(role)

    def is_strict(self, role: str) -> bool:
        """Return True if a role must lie on certain nodes, or in reserved huge pages."""
        return Demand(role, 1, self.policies[role]).strict

    def spill(self, role: str) -> None:
        """Move a role that does not fit to ordinary memory."""
        self._replace(role, "ddr")
        self.site.note(f"placement.{role}={self.asked[role]} does not fit and was spilled to {self.got[role]}")

    def allocate(self, role: str, n_bytes: int) -> Any:
        """Return zeroed private memory for a role; memory with requested nodes is touched at once, by this rank.

        OSError if the allocation fails; UserError if too few huge pages are reserved.
        """
        policy = self.policies[role]
        try:
            block = self.placements[role].allocate(n_bytes, self.site)
        except OSError as error:
            if RESERVED_BYTES[policy.huge_pages]:
                raise no_huge_pages(policy, n_bytes) from error
            raise
        if n_bytes and (policy.nodes or type(block) is not compiled.numa.Block):  # a Block is zeroed
            np.frombuffer(block, np.uint8)[:] = 0
        return block

    def bind(self, role: str, memory: np.ndarray) -> None:
        """Set the policy of a shared mapping, uint8 (n,), before its first touch. One rank of the node calls."""
        self.placements[role].bind(memory, self.site)
        if self.policies[role].huge_pages != "none":
            # Transparent huge pages come only on touch through the mapping with madvise. For reserved ones, mbind
            # applies to its own mapping, not to the file.
            populate(memory)

    def adopt(self, role: str, memory: np.ndarray) -> None:
        """Place and allocate this rank's own pages of a shared mapping, uint8 (n,), as its private memory.

        UserError if too few pages are free.
        """
        policy = self.policies[role]
        pages.bind(memory, policy, self.site.note)
        try:
            populate(memory)
        except OSError as error:
            if RESERVED_BYTES[policy.huge_pages]:
                raise no_huge_pages(policy, len(memory)) from None
            raise UserError(
                f"a rank must have memory for its {role}, got none for {len(memory):,} bytes of what its node shares "
                f"({error.strerror}); start fewer ranks or choose a smaller model"
            ) from None

    def homes(self) -> dict[str, Home]:
        """Return the home of every role, as this rank sees it."""
        return {role: Home(self.got[role], policy.page_bytes) for role, policy in self.policies.items()}

    def summary(self) -> dict[str, str]:
        """Return each role's requested placement, as "requested -> actual" if they differ."""
        named = ((role, name, self.got[role]) for role, name in self.asked.items())
        return {role: name if name == actual else f"{name} -> {actual}" for role, name, actual in named}
