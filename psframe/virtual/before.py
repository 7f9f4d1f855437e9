"""Base of what stands before an object of a run (:class:`Before`)."""

from typing import Any


class Before:
    """Stands before an object, and does what it defines; the rest is the object's, which does not know of it.

    So both go when the run lets them go: the collection of garbage does not look at what earlier ranks have made.
    """

    def __init__(self, behind: Any):
        self.behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)
