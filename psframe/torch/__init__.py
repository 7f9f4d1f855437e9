"""psframe's exchange for PyTorch: the backend ``"psframe"`` of ``torch.distributed`` for CPU tensors.

``import psframe.torch``, or psframe beside PyTorch in an environment, makes it known:

    dist.init_process_group("psframe")
"""

from psframe.torch.backend import register

__all__ = ["register"]

register()
