"""A place where ranks meet that is not the backend under test: the store of torchrun."""

import json
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class Meeting:
    """What ranks tell each other, by turns."""

    def __init__(self):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.PrefixStore("meeting", dist.TCPStore(*place, is_master=False))
        self.turn = 0

    def gather(self, value: Any, seconds: float) -> list[Any] | None:
        """Return what all ranks have, in order, or None if some have not come in time."""
        self.turn += 1
        keys = [f"{self.turn}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(value))
        try:
            self.store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            return None
        return [json.loads(self.store.get(key)) for key in keys]
