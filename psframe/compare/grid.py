"""Grid of a comparison (:func:`points`): each :class:`Point` is a run."""

import itertools
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psframe.bench import sweep
from psframe.cluster import mpirun
from psframe.config.schema import parse_value, spelled
from psframe.errors import UserError


@dataclass(frozen=True)
class Point:
    """One run of the grid: a config, overrides, and a number of ranks."""

    config: str
    overrides: tuple[str, ...]
    n_ranks: int

    @property
    def label(self) -> str:
        """The config's name and the overrides, which tell it from the others."""
        return " ".join([Path(self.config).stem, *self.overrides])

    @property
    def named(self) -> str:
        """The label and the number of ranks."""
        return f"{self.label}, {self.n_ranks} rank{'s' if self.n_ranks > 1 else ''}"

    @property
    def key(self) -> tuple[str, str, int]:
        """A key that is equal for the same run."""
        return str(Path(self.config).resolve()), " ".join(self.overrides), self.n_ranks


def points(arguments: Namespace) -> Iterator[Point]:
    """Yield every run of the grid. Raise UserError if the grid is invalid."""
    mpirun.refuse_ranks("psframe.compare")
    if arguments.repeat < 1:
        raise UserError(f"--repeat must be 1 or more, got {arguments.repeat}; give 1")
    if arguments.target is not None and not 0 <= arguments.target <= 1:
        raise UserError(f"--target must be an accuracy from 0 to 1, got {arguments.target:g}; write, say, 0.88")
    for override in arguments.set:
        if "=" not in override:
            raise UserError(f"--set must be KEY=VALUE, got {override!r}; write, say, --set train.epochs=3")
    for config in arguments.configs:
        if not Path(config).is_file():
            fix = f"give --set {config}" if "=" in config else "check the path"
            raise UserError(f"a config must be a readable file, got {config!r}; {fix}")
    stems = [Path(config).stem for config in arguments.configs]
    if len(set(stems)) < len(stems):
        raise UserError(f"configs must differ in their files' names, got {' '.join(arguments.configs)}; rename one")
    axes = [[f"{key}={spelled(value)}" for value in values] for key, values in map(_axis, arguments.grid)]
    ranks = sweep.counts(arguments.ranks)
    for config, n_ranks, *overrides in itertools.product(arguments.configs, ranks, *axes):
        yield Point(config, tuple(overrides), n_ranks)


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UserError(f"--grid must be KEY=VALUE,VALUE, got {text!r}; write, say, --grid sync.mode=easgd,hogwild")
    return key, parse_value(f"[{values}]")
