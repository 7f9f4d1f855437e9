"""psframe's exchange for PyTorch: the backend ``"psframe"`` of ``torch.distributed`` for CPU tensors.

``import psframe.torch``, or psframe beside PyTorch in an environment, makes it known:

    dist.init_process_group("psframe")
"""

from psframe.torch.backend import register
from psframe.torch.hooks import compressed_hook, fused_hook

__all__ = ["compressed_hook", "fused_hook", "register"]

register()
