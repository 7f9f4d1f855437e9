"""What each script begins and ends with: its arguments, its ranks, and a line of JSON from rank 0."""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Case = Callable[..., dict[str, Any]]


def run(*cases: Case, but: Mapping[str, Sequence[Case]] | None = None) -> None:
    """Run the cases that the command line names, or all, on all ranks; rank 0 prints what each of them returned.

    With several backends, such as ``psframe,gloo``, they run with each, one after the other, and it prints a line each.
    Those that ``but`` has for a backend are not run with it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("backends", nargs="?", default="gloo")
    parser.add_argument("cases", nargs="*", help="all, unless some are named")
    args = parser.parse_args()
    named = {case.__name__: case for case in cases}
    for backend in args.backends.split(","):
        begin(backend)
        chosen = [named[name] for name in args.cases or named]
        told = {case.__name__: _ranks_of(case) for case in chosen if case not in (but or {}).get(backend, ())}
        if dist.get_rank() == 0:
            print(json.dumps({"backend": backend, "cases": told}), flush=True)
        dist.destroy_process_group()


def begin(backend: str, timeout_s: float = 60) -> None:
    """Join the other ranks."""
    if backend == "psframe":
        import psframe.torch  # noqa: F401  (makes the name known)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


def _ranks_of(case: Case) -> dict[str, list[Any]]:
    """Run a case from the same random state; return for each of its results what every rank has."""
    torch.manual_seed(7)
    mine = case()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return {key: [each[key] for each in every] for key in mine}


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return the SHA-256 of the tensors' bytes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)  # NumPy pins what it sees
        sha.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return sha.hexdigest()


def digest_of(model: torch.nn.Module) -> str:
    """Return the SHA-256 of a model's parameters and buffers."""
    return digest(model.state_dict().values())


def generator(salt: int = 0) -> torch.Generator:
    """Return this rank's own source of random data."""
    return torch.Generator().manual_seed(1000 * salt + dist.get_rank())
