"""What a run has learnt, by the names of its tensors, for whoever has no psframe to train with."""

from pathlib import Path

import numpy as np

from psframe.errors import UserError
from psframe.memory.arena import described
from psframe.record import checkpoint


def tensors(run: str | Path) -> dict[str, np.ndarray]:
    """Return the tensors of a run's newest whole checkpoint: float32, in the shapes that they have in PyTorch.

    Names are those of the model, as ``0.Conv2d.weight``; of ``model: torch`` those of the user's module, so that
    ``module.load_state_dict({name: torch.from_numpy(t) for name, t in tensors(run).items()}, strict=False)`` takes
    them. No other rank, and no MPI, is needed.

    Raises
    ------
    UserError
        Where there is no run, or no checkpoint that is whole.
    """
    folder = Path(run) / "checkpoints"
    saved, _ = checkpoint.newest(folder, None) if folder.is_dir() else (None, [])
    if saved is None:
        raise UserError(f"a run must have a checkpoint, got none in {str(run)!r}; give the folder of one that has")
    found = {}
    try:
        for name, slot in described(saved.layout).items():
            _, kind, within = (*name.split(".", 2), "", "")[:3]
            found[within if kind == "Torch" else name] = np.ascontiguousarray(slot.view(saved.params))
    except ValueError as error:
        raise UserError(f"a checkpoint must hold its tensors, got {error} in {str(run)!r}; restore it") from None
    return found
