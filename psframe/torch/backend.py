"""Make the backend known to PyTorch (:func:`register`), which calls it at its own import, too."""

from typing import Any


def register() -> None:
    """Let ``init_process_group("psframe")`` make groups for CPU tensors. PyTorch calls it at the end of its import."""
    import torch.distributed as dist

    if dist.is_available() and "PSFRAME" not in dist.Backend._plugins:
        dist.Backend.register_backend("psframe", _group, extended_api=True, devices=["cpu"])


def _group(options: Any, _: Any) -> Any:
    """Return a group; its modules are imported by the first one, since all that import PyTorch come by here."""
    from psframe.torch.eager import skip
    from psframe.torch.group import Group

    skip(Group)
    return Group(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
    )
