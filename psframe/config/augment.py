"""Section ``augment`` of a config (:class:`Augment`)."""

from typing import Literal

import msgspec

from psframe.config.registry import Count, NonNegative


class Augment(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Augmentation of training samples (``psframe.train.data.augment``); none by default. ``crop``: values of padding
    around a sample, of which a window at a random place is taken; ``flip``: mirrors half of the images left to right,
    turns half of them upside down, or both, besides what the dataset asks for; ``cutout``: side of a square at a
    random place, or length of a stretch of a sequence, that is replaced by the mean; ``mixup``: alpha of the
    distribution Beta(alpha, alpha) of the share with which a sample is mixed with another one."""

    crop: Count = 0
    flip: Literal["none", "horizontal", "vertical", "both"] = "none"
    cutout: Count = 0
    mixup: NonNegative = 0.0
