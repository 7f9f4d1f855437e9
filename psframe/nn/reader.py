"""Parameters that layers read (:class:`Reader`): those of the arena's current step, or others for a while."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psframe.memory.arena import Arena
from psframe.nn.base import Arrays, Layer


class Reader:
    """Views of the parameters for the layers of a network or of a stage of it.

    Parameters
    ----------
    layers : sequence of (int, Layer)
        Layers that run, with their numbers.
    arena : Arena
    views : sequence of dict of str to ndarray
        All tensors by name, of each of the versions of the parameters that are kept.
    """

    def __init__(self, layers: Sequence[tuple[int, Layer]], arena: Arena, views: Sequence[Arrays]):
        self.layers, self.arena = layers, arena
        self.versions = [self.by_layer(version) for version in views]
        self.version = arena.version

    def by_layer(self, views: Arrays) -> list[Arrays]:
        """Return the layers' tensors, under their names in the layer."""
        return [{name: views[f"{index}.{layer.kind}.{name}"] for name in layer.params} for index, layer in self.layers]

    @property
    def current(self) -> list[Arrays]:
        """Views of the version that the layers read, by layer."""
        return self.versions[self.version % len(self.versions)]

    def follow(self) -> None:
        """Point the layers to the parameters of the arena's current version."""
        if self.version != self.arena.version:
            self.version = self.arena.version
            if len(self.versions) > 1:
                self._use(self.current)

    @contextmanager
    def reading(self, views: Sequence[Arrays]) -> Iterator[None]:
        """Point the layers to other parameters meanwhile, by layer; no step may end within."""
        self.follow()
        self._use(views)
        try:
            yield
        finally:
            self._use(self.current)

    def _use(self, views: Sequence[Arrays]) -> None:
        for (_, layer), own in zip(self.layers, views, strict=True):
            layer.use(own)
