"""Section ``checkpoint`` of a config (:class:`Checkpoint`)."""

import msgspec

from psframe.config.registry import Count, PositiveInt, Seconds


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Checkpoints. ``every_epochs: 0`` writes none after epochs; ``every_seconds`` writes them within epochs, and after
    the last one; ``resume`` is none, auto, or the path of a run; ``best``, a number of the epochs' records, keeps that
    of the best epoch, too."""

    every_epochs: Count = 1
    every_seconds: Seconds = 0.0
    keep: PositiveInt = 3
    resume: str = "none"
    best: str = "none"

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Return True if one is due after ``epoch`` of ``epochs``: after the last one if there are any."""
        if epoch == epochs:
            return bool(self.every_epochs or self.every_seconds)
        return bool(self.every_epochs) and epoch % self.every_epochs == 0
