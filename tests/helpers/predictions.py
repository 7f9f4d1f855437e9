"""A machine, a network's work and a way to share it, as psframe.predict measures them."""

from dataclasses import replace

from psframe.predict import machine, model
from psframe.predict.job import ExchangePlan, Layer, Work


def work(**changes):
    """Return what was measured of a network of two layers, with some of it changed."""
    layers = [
        Layer(
            "Conv2d",
            {"forward": 1e8, "backward": 2e8},
            {"forward": 1e6, "backward": 3e6},
            {"forward": (2e-3, 6e-4), "backward": (4e-3, 1.1e-3)},
        ),
        Layer(
            "ReLU",
            {"forward": 0.0, "backward": 0.0},
            {"forward": 4e6, "backward": 6e6},
            {"forward": (6e-4, 2e-4), "backward": (9e-4, 3e-4)},
        ),
    ]
    made = Work("net", (32, 8), (8.1e-3, 2.5e-3), 0.02, layers, 6000, 400_000, 100.0, 10.0, 1.0, 2, 3.0, "MPI 1")
    return replace(made, **changes)


def way(**changes):
    """Return a way to train: of four ranks of a node in shared memory, unless changed."""
    return ExchangePlan(**{"mode": "allreduce", "server": None, "n_servers": 1, "collective": "shared",
                  "reproducible": "none", "ranks": 4, **changes})  # fmt: skip


def job(**changes):
    """Return the work on a machine that is known, unless changed."""
    return model.Job(**{"machine": machine.read("knl-7250-mcdram"), "work": work(), **changes})
