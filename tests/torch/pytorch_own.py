"""PyTorch's own tests of process groups, as its wheel has them, run against a backend that they do not know.

    python -m tests.torch.pytorch_own --backend psframe --like gloo --ranks 3 [NAME ...]
    python -m tests.torch.pytorch_own --list

NAME is what the name of a test begins with, without ``test_``; with none, all. They are the methods of
``DistributedTest._DistTestBase`` in ``torch.testing._internal.distributed.distributed_test``. There, every test starts
processes of its own. Here the same ranks run one after the other, each test in a group that is made for it, which takes
a tenth of the time; ranks of which one has failed or is late are started anew. Most tests choose among the backends
that PyTorch has; they are told the name given by ``--like`` (gloo, or mpi, which has more), and get the one under test.
A line of JSON tells of each test what rank it failed on, and how, or why it was skipped.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

LATE_S = 90  # of one test, until its ranks are ended
LOOK_S = 0.05
GOING_S = 20  # until ranks that have nothing to do any more have ended


def outcomes(
    backend: str, like: str, n: int, names: Sequence[str] = (), but: Collection[str] = (), late_s: float = LATE_S
) -> Iterator[dict[str, Any]]:
    """Run the tests whose names begin so on ``n`` ranks; yield of each its name, its errors, why it was skipped.

    Those that ``but`` names are left out.
    """
    with tempfile.TemporaryDirectory(prefix="psframe-pytorch-") as folder:
        todo = [name for name in listed(like, n, folder) if name not in but and _is_chosen(name, names)]
        while todo:
            done = yield from _some((backend, like), n, todo, Path(folder), late_s)
            todo = todo[done:]


def _is_chosen(name: str, starts: Sequence[str]) -> bool:
    return not starts or any(name.removeprefix("test_").startswith(start.removeprefix("test_")) for start in starts)


def listed(like: str, n: int, folder: str) -> list[str]:
    """Return the names of all tests."""
    command = [sys.executable, "-m", "tests.torch.pytorch_rank", "list"]
    ended = subprocess.run(
        command, env=_environment(("gloo", like), n, 0, Path(folder)), capture_output=True, text=True, timeout=300
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    return json.loads(ended.stdout)


def _environment(backend: tuple[str, str], n: int, rank: int, folder: Path) -> dict[str, str]:
    own = {
        "PSFRAME_BACKEND": backend[0],
        "BACKEND": backend[1],
        "WORLD_SIZE": str(n),
        "RANK": str(rank),
        "TEMP_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    alone = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    return {**os.environ, **alone, **own, "INIT_METHOD": f"file://{folder}/unused"}


def _some(backend: tuple[str, str], n: int, todo: Sequence[str], root: Path, late_s: float) -> Iterator[dict[str, Any]]:
    """Run tests until one fails on a rank, or is late; return how many have run."""
    folder = Path(tempfile.mkdtemp(dir=root))
    for name in ("barrier", "test_dir", "told"):
        (folder / name).mkdir()
    (folder / "todo.json").write_text(json.dumps(list(todo)))
    with contextlib.ExitStack() as stack:
        errors = [stack.enter_context(open(folder / f"stderr-{rank}", "w+")) for rank in range(n)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.torch.pytorch_rank", str(folder)],
                **{"stdin": subprocess.DEVNULL, "stdout": errors[rank], "stderr": errors[rank]},
                env=_environment(backend, n, rank, folder),
            )
            for rank in range(n)
        ]
        try:
            for at, name in enumerate(todo):
                line = _outcome(ranks, folder, at, late_s)
                if line["errors"]:
                    line["stderr"] = [(folder / f"stderr-{rank}").read_text()[-2000:] for rank in range(n)]
                yield {"test": name, **line}
                if line["errors"]:
                    return at + 1
            for rank in ranks:
                rank.wait(GOING_S)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return len(todo)


def _outcome(ranks: Sequence[subprocess.Popen], folder: Path, at: int, late_s: float) -> dict[str, Any]:
    """Wait for what each rank tells of a test."""
    began = time.monotonic()
    files = [folder / "told" / f"{at}-{rank}" for rank in range(len(ranks))]
    failed_at = None
    while True:
        ended = [rank.poll() for rank in ranks]  # before the files, which a rank writes before it ends
        told = [json.loads(file.read_text()) if file.exists() else None for file in files]
        errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(told) if each and each["error"]]
        errors += [
            f"rank {rank} ended with status {status}"
            for rank, (status, each) in enumerate(zip(ended, told, strict=True))
            if status is not None and each is None
        ]
        now = time.monotonic()
        failed_at = failed_at or (now if errors else None)
        if all(told) or (failed_at and now > failed_at + 2):
            skipped = {each["skipped"] for each in told if each} - {None}
            return {"errors": errors, "skipped": ", ".join(sorted(skipped)) or None, "seconds": round(now - began, 2)}
        if now > began + late_s:
            late = [rank for rank, each in enumerate(told) if each is None]
            return {"errors": [f"ranks {late} at no end after {late_s} s"], "skipped": None, "seconds": late_s}
        time.sleep(LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--backend", default="psframe")
    parser.add_argument("--like", default="gloo", help="backend of PyTorch that the tests take it for")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--late", type=float, default=LATE_S, help="seconds of a test")
    parser.add_argument("--list", action="store_true", help="print the names")
    args = parser.parse_args()
    if args.list:
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(listed(args.like, args.ranks, folder)))
        return 0
    failed = []
    for line in outcomes(args.backend, args.like, args.ranks, args.names, late_s=args.late):
        print(json.dumps(line), flush=True)
        failed += [line["test"]] * bool(line["errors"])
    print(f"{len(failed)} failed: {' '.join(failed)}" if failed else "none failed", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
