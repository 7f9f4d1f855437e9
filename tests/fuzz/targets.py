"""All targets by name."""

from tests.fuzz import checkpoints, configs, datasets, runs
from tests.fuzz.base import Make

TARGETS: dict[str, Make] = {**configs.TARGETS, **datasets.TARGETS, **runs.TARGETS, **checkpoints.TARGETS}
