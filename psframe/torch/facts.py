"""What psframe's backend would do on this machine (:func:`facts`), for ``python -m psframe.doctor --torch``."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

RANKS = (2, 8, 64)
LACKS = ("tensors of a GPU", "sparse tensors", "split_group")


def facts(n_cores: int) -> dict[str, Any]:
    """Return PyTorch's version, whether it knows the backend, the bytes of a group, and how its ranks wait.

    Parameters
    ----------
    n_cores : int
        Cores that this process may use.
    """
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        return {"pytorch": None, "error": str(error).splitlines()[0]}
    if not dist.is_available():
        return {"pytorch": torch.__version__, "error": "this build of PyTorch has no torch.distributed"}
    from psframe.torch.meeting import size_of

    return {
        "pytorch": torch.__version__,
        "error": None,
        "needs_import": not [found for found in entry_points(group="torch.backends") if found.name == "psframe"],
        "group_bytes": {str(n): size_of(n)[1] for n in RANKS},
        "spins_up_to_ranks": n_cores,
        "lacks": list(LACKS),
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the facts as lines of the report."""
    if found["error"]:
        return ["", f"PyTorch      {found['error']}; pip install torch"]
    word = "after `import psframe.torch`" if found["needs_import"] else "`import torch` is enough"
    sizes = ", ".join(f"{n_bytes / 1e6:.1f} MB for {n} ranks" for n, n_bytes in found["group_bytes"].items())
    return [
        "",
        f"PyTorch      {found['pytorch']}, {word}",
        '  change     dist.init_process_group("gloo") to dist.init_process_group("psframe")',
        f"  memory     of a group, at most: {sizes}",
        f"  waits      spin shortly up to {found['spins_up_to_ranks']} ranks, which have a core each; beyond, sleep",
        f"  lacks      {', '.join(found['lacks'])}",
    ]
