"""Short runs, and what each has to end in: ``golden.json``, by their names.

``mpirun -n 5 python -m tests.ranks.golden`` writes the file anew, from what this checkout does; with ``--new``, only
what is not in it yet. Only a change that is
meant to change bits, bytes or the record's keys does that, and says so.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
COLLECTIVES = ("shared", "{name: shared, reducers: server}", "hierarchical", "buffer", "object", "null")
SERVERS = ("allreduce", "{mode: sync_ps, server: dedicated}", "{mode: sync_ps, server: colocated}")
#: modes and collectives whose runs end in other bits and bytes each time
FREE = ("async_ps}", "pull_every", "staleness: 2", "compensate", "backup", "easgd", "wild", "hybrid")
CODECS = ("fp16", "bf16", "onebit", "{name: topk, density: 0.3}")
ANY = "train={reproducible: any_workers, global_batch: 24, epochs: 1}"
DROPOUT = "model={name: 'tests.helpers.tiny:build', dropout: 0.3}"
TORCH = "model={name: torch, build: 'tests.helpers.torch_nets:row'}"
BLAS = "nn.kernels=blas"
BF16 = "train.precision=bf16"
APART = (
    "{mode: sync_ps, backup_workers: 1}",
    "{mode: async_ps}",
    "{mode: async_ps, pull_every: 3, push_every: 2}",
    "{mode: async_ps, staleness: 0}",
    "{mode: async_ps, staleness: 2}",
    "{mode: async_ps, compensate: true}",
    "{mode: easgd, period: 4}",
    "{mode: hogwild}",
    "{mode: dogwild}",
    "{mode: hybrid, period: 2}",
)
AVERAGING = (
    "{mode: easgd, period: 4, synchronous: true}",
    "{mode: local_sgd, every: 3}",
    "{mode: local_sgd, every: 3, post_local: 1}",
    "{mode: block_momentum, every: 3, nesterov: true}",
    "{mode: block_momentum, every: 3}",
)

#: what all runs have: five steps or so of each worker
SHORT = ("dataset.samples=101", "train.epochs=1", "optimizer={name: sgd, lr: 0.02, momentum: 0.5}")
BITS = "params_sha256"
SETTING = ("n_workers", "sync_mode", "collective", "store", "server", "n_servers")
SAME = (BITS, "pulls", "pushes")
MOVED = ("bytes_read", "bytes_written", "bytes_sent")

Run = tuple[int, list[str]]  # ranks, and what is overridden


@cache
def runs() -> dict[str, list[Run]]:
    """Return every run by its name: one command after the other, of which all but the first continue the one before."""
    found = {" ".join(map(str, (n, *keys))): [(n, keys)] for n, keys in _single()}
    for name, several in _continued():
        found[f"continued: {name}"] = [
            (n, [*keys, f"train.epochs={epoch}", *["checkpoint.resume=auto"] * (epoch > 1)])
            for epoch, (n, keys) in enumerate(several, 1)
        ]
    return found


def _single() -> Iterator[Run]:
    for at, mode in enumerate(SERVERS):
        for collective in COLLECTIVES:
            yield 3, [f"sync={mode}", f"collective={collective}"]
        for n in (1, 2, 4, 5):
            yield n, [f"sync={mode}", f"collective={COLLECTIVES[(n + at) % 5]}", DROPOUT]
        for n in (1, 2, 3, 5):
            yield n, [f"sync={mode}", f"collective={('shared', 'hierarchical', 'buffer')[(n + at) % 3]}", ANY]
        yield 4, [f"sync={mode}", "collective={name: buffer, bucket_bytes: 64}"]
    for servers in (2, 3):
        yield 4, [f"sync={{mode: sync_ps, servers: {servers}}}", "collective=buffer"]
        yield 3, [f"sync={{mode: sync_ps, server: colocated, servers: {servers}}}", "collective=buffer"]
    for mode in (*APART, *AVERAGING):
        yield 4, [f"sync={mode}"]
    for mode in AVERAGING:
        yield 3, [f"sync={mode}", "collective=buffer", "optimizer={name: adam, lr: 0.002}"]
    for mode in ("{mode: easgd, store: window}", "{mode: async_ps, staleness: 0, store: window}"):
        yield 3, [f"sync={mode}"]
    for codec in CODECS:
        yield 3, ["sync=allreduce", f"collective={{name: buffer, compression: {codec}}}"]
        yield 3, ["sync=sync_ps", f"collective={{name: object, compression: {codec}}}"]
    yield from _parallel()
    yield from _others()
    yield from _bfloat16()


def _parallel() -> Iterator[Run]:
    for n, parallel in (
        (1, "{micro_batches: 3}"),
        (2, "{micro_batches: 3, pipeline: 2}"),
        (4, "{micro_batches: 2, pipeline: 2, schedule: gpipe}"),
        (2, "{model: 2}"),
        (4, "{model: 2, micro_batches: 2, pipeline: 2}"),
        (4, "{model: 2}"),
        (2, "{model: 2, convolutions: data}"),
    ):
        yield n, ["sync=allreduce", BLAS, f"parallel={parallel}"]


def _others() -> Iterator[Run]:
    for place in ("ddr", "default", "{name: interleave}"):
        yield 3, [f"placement={{parameters: {place}, gradients: {place}, optimizer: {place}, data: {place}}}"]
    for optimizer in ("adam, lr: 0.002", "adagrad, lr: 0.01", "sgd, lr: 0.02, nesterov: true, momentum: 0.9"):
        yield 3, ["sync=allreduce", f"optimizer={{name: {optimizer}}}"]
    yield 3, ["sync=allreduce", "fault={on_nan: skip, check_every: 2}"]
    yield 3, ["sync=sync_ps", "fault={on_nan: rollback}"]
    yield 3, ["sync=sync_ps", "schedule={name: cosine, warmup_epochs: 1, base_batch: 8}"]
    yield 2, ["sync=allreduce", "record.trace=2", "record.usage=true"]
    yield 2, ["sync=allreduce", "train={reproducible: none, threads: 1, epochs: 1}", "collective=object"]
    for n in (1, 3):
        yield n, ["sync=allreduce", TORCH, "train.threads=1"]


def _bfloat16() -> Iterator[Run]:
    for at, mode in enumerate(SERVERS):
        for collective in ("shared", "hierarchical", "buffer"):
            yield 3, [f"sync={mode}", f"collective={collective}", BF16]
        for n in (1, 2, 3, 5):
            yield n, [f"sync={mode}", f"collective={('shared', 'hierarchical', 'buffer')[(n + at) % 3]}", ANY, BF16]
    yield 3, ["sync=allreduce", DROPOUT, "optimizer={name: adam, lr: 0.002}", BF16]
    yield 3, ["sync={mode: local_sgd, every: 3}", BF16]
    yield 3, ["sync={mode: easgd, period: 4}", BF16]
    yield 4, ["sync={mode: sync_ps, servers: 2}", "collective=buffer", BF16]
    for mode in ("allreduce", "sync_ps"):
        for collective in ("shared", "buffer"):
            yield 3, [f"sync={mode}", f"collective={collective}", "fault={on_nan: skip, check_every: 2}", BF16]
    yield 3, ["sync=sync_ps", "collective=object", BF16]
    yield 3, ["sync=sync_ps", "collective={name: buffer, compression: fp16}", BF16]
    for n, parallel in (
        (1, "{micro_batches: 3}"),
        (2, "{micro_batches: 3, pipeline: 2}"),
        (2, "{model: 2}"),
        (2, "{model: 2, convolutions: data}"),
    ):
        yield n, ["sync=allreduce", f"parallel={parallel}", BF16]


def _continued() -> Iterator[tuple[str, list[Run]]]:
    yield "sync_ps", [(3, ["sync=sync_ps"])] * 2
    yield "fewer ranks", [(4, ["sync=allreduce", ANY]), (2, ["sync=allreduce", ANY])]
    yield "local_sgd", [(3, ["sync={mode: local_sgd, every: 3}"])] * 2
    yield "block_momentum", [(3, ["sync={mode: block_momentum, every: 3}"])] * 2
    cuts = ("{micro_batches: 2}", "{micro_batches: 2, pipeline: 2}")
    yield "another cut", [(n, ["sync=allreduce", BLAS, f"parallel={cut}"]) for n, cut in enumerate(cuts, 1)]
    yield BF16, [(3, ["sync=sync_ps", *([BF16] if precise else [])]) for precise in (True, False, True)]
    yield "torch", [(2, ["sync=allreduce", TORCH, "train.threads=1"])] * 2


def kind(name: str) -> str:
    """Return whose arithmetic a run has, which may differ from machine to machine: the bits of one kind go together."""
    if BF16 in name:
        return "bf16"
    return "torch" if "torch" in name else "blas" if BLAS in name or "another cut" in name else "direct"


def is_free(name: str) -> bool:
    """Return whether a run ends in other bits each time, and moves other numbers of bytes."""
    return any(word in name for word in FREE) and "synchronous" not in name and "staleness: 0" not in name


def run(world: Any, name: str) -> dict[str, Any]:
    """Return what a run ends in: the record's keys, and of what is the same each time bits and bytes. All must call."""
    from tests.ranks.training import folder, train

    with folder(world) as where:
        for n, keys in runs()[name]:
            records, _, _ = train(world, n, where, *SHORT, *keys)
    last = records[-1]
    timed = "pipeline" in name or "cut" in name  # what its ranks compute fastest says where it is cut
    asked = SETTING if is_free(name) else (*SETTING, *SAME) if timed else (*SETTING, *SAME, *MOVED)
    return {"keys": sorted(last), "epochs": len(records), **{key: last[key] for key in asked}}


def read() -> dict[str, dict[str, Any]]:
    """Return what is written down, by the runs' names."""
    written = json.loads(FILE.read_text())
    return {name: {**ended, "keys": written["keys"][ended["keys"]]} for name, ended in written["runs"].items()}


def write(every: dict[str, dict[str, Any]]) -> None:
    """Write a line a run; most have the same keys."""
    keys: list[list[str]] = []
    for ended in every.values():
        if ended["keys"] not in keys:
            keys.append(ended["keys"])
    lines = [json.dumps({name: {**ended, "keys": keys.index(ended["keys"])}})[1:-1] for name, ended in every.items()]
    runs = ",\n".join(lines)
    FILE.write_text(f'{{"keys": {json.dumps(keys)},\n"runs": {{\n{runs}}}}}\n')


def main() -> None:
    from mpi4py import MPI

    world, known = MPI.COMM_WORLD, read() if sys.argv[1:] == ["--new"] else {}
    every = {name: known[name] if name in known else run(world, name) for name in runs()}
    if world.rank == 0:
        write(every)


if __name__ == "__main__":
    main()
