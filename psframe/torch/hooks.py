"""Communication hooks for DDP (:func:`fused_hook`, :func:`compressed_hook`), whose modules their first use imports."""

from collections.abc import Mapping
from typing import Any


def fused_hook(optimizer: Any, group: Any = None) -> Any:
    """Return a hook that updates parameters where gradients are summed; see :mod:`psframe.torch.fused`."""
    from psframe.torch.fused import Fused

    return Fused(optimizer, group)


def compressed_hook(codec: str | Mapping[str, Any], group: Any = None) -> Any:
    """Return a hook that exchanges gradients in fewer bytes; see :mod:`psframe.torch.compressed`."""
    from psframe.torch.compressed import Compressed

    return Compressed(codec, group)
