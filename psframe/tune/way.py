"""Ways to train a config (:class:`Way`): a number of ranks, and settings in place of the config's."""

from dataclasses import dataclass, replace
from typing import Any

from psframe.config.schema import spelled
from psframe.config.tuned import BATCH


@dataclass(frozen=True)
class Way:
    """One way to train a config.

    Attributes
    ----------
    n_ranks : int
    settings : tuple of (str, str)
        Keys of the config, with values as YAML, sorted by key.
    batch_size : int or None
        A worker's samples of a step with which the global batch stays as it is; None: as the config says.
    """

    n_ranks: int
    settings: tuple[tuple[str, str], ...] = ()
    batch_size: int | None = None

    def but(self, **changes: Any) -> "Way":
        """Return it with other ranks (``n_ranks``) or another ``batch_size``."""
        return replace(self, **changes)

    def having(self, key: str, value: Any) -> "Way":
        """Return it with a setting; ``value`` is plain."""
        settings = {**dict(self.settings), key: spelled(value)}
        return replace(self, settings=tuple(sorted(settings.items())))

    def without(self, key: str) -> "Way":
        """Return it with the config's own value of ``key``."""
        return replace(self, settings=tuple(pair for pair in self.settings if pair[0] != key))

    @property
    def overrides(self) -> list[str]:
        """The settings as a command line has them."""
        own = [f"{BATCH}={self.batch_size}"] if self.batch_size is not None else []
        return [*(f"{key}={value}" for key, value in self.settings), *own]

    @property
    def label(self) -> str:
        """The way in words, on one line."""
        ranks = f"{self.n_ranks} rank{'s' * (self.n_ranks > 1)}"
        return " ".join([f"{ranks},", *(f"{key}={value}" for key, value in self.settings)]).rstrip(",")

    @property
    def plain(self) -> dict[str, Any]:
        """The way for JSON."""
        return {"n_ranks": self.n_ranks, "settings": dict(self.settings), "batch_size": self.batch_size}
