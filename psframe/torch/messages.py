"""Messages from rank to rank as PyTorch calls them on a group (:class:`Messages`)."""

from collections.abc import Sequence
from typing import Any

import torch

from psframe.torch.collectives import back, given, room
from psframe.torch.peers import Parcel, Peers, view
from psframe.torch.progress import PROGRESS
from psframe.torch.types import type_number
from psframe.torch.work import Message


class Messages:
    """Sending and receiving; each returns its work."""

    peers: Peers
    begin_message: Any
    error: Exception | None

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        memory = given(tensor)
        parcel = Parcel(rank, tag, type_number(tensor.dtype), view(memory))
        return self._begin(f"send to rank {{{rank}}}", parcel, [memory], None, self.peers.send)

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        memory = room(tensor)
        parcel = Parcel(rank, tag, type_number(tensor.dtype), view(memory))
        said = f"receive from rank {{{rank}}}" if rank >= 0 else "receive from any rank"
        return self._begin(said, parcel, [tensor, memory], back([(tensor, memory)]), self.peers.receive)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Any:
        return self.recv(tensors, -1, tag)

    def _begin(self, said: str, parcel: Parcel, tensors: list[torch.Tensor], last: Any, start: Any) -> Any:
        if self.error is not None:
            raise self.error
        message = Message(self, f"{said} of {len(parcel.data):,} bytes", parcel, tensors, last)
        with PROGRESS.lock:
            start(parcel)
        return self.begin_message(message, True)
