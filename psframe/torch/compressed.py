"""Communication hook of DDP that exchanges gradients in fewer bytes (:class:`Compressed`), by psframe's codecs."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from psframe.collectives.codecs import TABLE, Codec
from psframe.config import registry


class Compressed:
    """Hook for ``DistributedDataParallel.register_comm_hook(None, hook)``.

    Every rank decodes and adds all payloads in the order of ranks, so all have the same bits. Codecs with error
    feedback have a residual for each bucket; it begins anew where DDP forms its buckets anew, behind the first step.

    Parameters
    ----------
    codec : str or mapping
        ``fp16``, ``bf16``, ``onebit`` or ``topk``; or a mapping with ``name`` and the codec's keys, as
        ``collective.compression`` has them.
    group : ProcessGroup, optional
        Of any backend; by default the job's.

    Raises
    ------
    UserError
        There is no such codec, or it has no such key.
    ValueError
        A bucket's gradients are not float32.
    """

    def __init__(self, codec: str | Mapping[str, Any], group: Any = None):
        spec = {"name": codec} if isinstance(codec, str) else dict(codec)
        self.make = registry.bind("compressed_hook", TABLE, spec)
        self.group = dist.group.WORLD if group is None else group
        self.codecs: dict[tuple[int, int], Codec] = {}
        self.__name__ = self.__qualname__ = "compressed_hook"

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange a bucket; return the future of the mean."""
        buffer = bucket.buffer()
        if buffer.dtype is not torch.float32:
            raise ValueError(f"a compressed hook must have float32 gradients, got {buffer.dtype}; leave the hook out")
        codec = self._codec(bucket.index(), buffer.numel())
        payload = np.empty(codec.n_bytes, np.uint8)
        codec.encode(buffer.numpy(), payload)
        every = torch.empty(self.group.size() * codec.n_bytes, dtype=torch.uint8)
        work = dist.all_gather_single(every, torch.from_numpy(payload), group=self.group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future()
        return future.then(partial(self._mean, codec, every, buffer))

    def _codec(self, index: int, size: int) -> Codec:
        if (index, size) not in self.codecs:
            self.codecs = {key: codec for key, codec in self.codecs.items() if key[0] != index}
            self.codecs[index, size] = self.make(size, np.zeros)
        return self.codecs[index, size]

    def _mean(self, codec: Codec, every: torch.Tensor, buffer: torch.Tensor, _: Any) -> torch.Tensor:
        buffer.zero_()
        for payload in every.numpy().reshape(self.group.size(), codec.n_bytes):
            codec.add(payload, buffer.numpy())
        return buffer.div_(self.group.size())
