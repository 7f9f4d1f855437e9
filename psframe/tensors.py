"""Tensors of a run by name (:func:`tensors`), for use outside of training."""

from pathlib import Path

import numpy as np

from psframe.errors import UserError
from psframe.memory.arena import described
from psframe.record import checkpoint


def tensors(run: str | Path, best: bool = False) -> dict[str, np.ndarray]:
    """Return the tensors of a run's newest complete checkpoint: float32, in their PyTorch shapes.

    Names are those of the model, such as ``0.Conv2d.weight``; for ``model: torch``, those of the user's module, so that
    ``module.load_state_dict({name: torch.from_numpy(t) for name, t in tensors(run).items()}, strict=False)`` accepts
    them. Needs neither other ranks nor MPI. ``best``: those of the checkpoint that ``checkpoint.best`` keeps. Of a run
    that kept an average of its parameters, they are that.

    Raises
    ------
    UserError
        The run is missing, or has no complete checkpoint.
    """
    saved, by_name = newest(run, best), {}
    try:
        for name, slot in described(saved.layout).items():
            _, kind, within = (*name.split(".", 2), "", "")[:3]
            by_name[within if kind == "Torch" else name] = np.ascontiguousarray(slot.view(saved.evaluated))
    except ValueError as error:
        raise UserError(f"a checkpoint must hold its tensors, got {error} in {str(run)!r}; restore it") from None
    return by_name


def newest(run: str | Path, best: bool = False) -> checkpoint.Saved:
    """Return a run's newest complete checkpoint, or its best one; UserError if it has none."""
    folder = Path(run) / "checkpoints"
    if best and folder.is_dir():
        return checkpoint.best(folder)
    saved, _ = checkpoint.newest(folder, None) if folder.is_dir() else (None, [])
    if saved is None:
        raise UserError(f"a run must have a checkpoint, got none in {str(run)!r}; give the folder of one that has")
    return saved
