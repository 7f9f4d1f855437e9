"""Benchmark ``torch`` (:func:`main`): the backend ``psframe`` of torch.distributed against another one, in turn.

``python -m psframe.bench torch --ranks 2,4`` starts the ranks as torchrun would, one thread each and not pinned. In
each round both backends reduce each size, and both take steps of DistributedDataParallel, in rotating order. A time is
that of the slowest rank, and a ratio that of two neighbours in a round.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from psframe.bench import sweep
from psframe.bench.files import claim, write
from psframe.bench.torch_models import MODELS
from psframe.cluster.parser import Parser
from psframe.cluster.parser import counts as counts_of
from psframe.errors import UserError
from psframe.record.spread import spread

USAGE = (
    "python -m psframe.bench torch [--ranks N,N] [--against gloo] [--sizes BYTES,BYTES] [--models NAME,NAME] "
    "[--global-batch B] [--rounds N] [--json FILE]"
)
EXAMPLE = "python -m psframe.bench torch --ranks 2,4 --models lenet"
SIZES = "16,65536,1740000,33554432"
TIMEOUT_S = 1800
LOOK_S = 1.0  # between two looks whether a rank has failed
END_S = 60.0  # for the other ranks to end behind the first
MOST_BYTES = 1 << 40


def parser() -> Parser:
    cli = Parser(USAGE, "Measure all_reduce and steps of DDP over psframe's backend and over another one.", EXAMPLE)
    cli.add_argument("--ranks", default="2", help="numbers of ranks, one after another (default: 2)")
    cli.add_argument("--against", default="gloo", help="the other backend (default: gloo)")
    cli.add_argument("--sizes", default=SIZES, help=f"bytes of float32 to reduce (default: {SIZES})")
    cli.add_argument("--models", default="lenet", help=f"some of {', '.join(MODELS)}; none for no steps")
    cli.add_argument("--global-batch", type=int, default=64, help="samples of a step over all ranks (default: 64)")
    cli.add_argument("--rounds", type=int, default=20, help="of each size, and of ten steps (default: 20)")
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    cli = parser()
    arguments = cli.parse_args(argv)
    claim(arguments.json)
    asked = {
        "against": arguments.against,
        "sizes": _sizes(arguments.sizes),
        "models": _models(arguments.models),
        "global_batch": arguments.global_batch,
        "rounds": arguments.rounds,
    }
    counts = sweep.counts(arguments.ranks)
    if min(arguments.rounds, arguments.global_batch) < 1:
        raise UserError("--rounds and --global-batch must be at least 1; give others")
    rows: list[dict[str, Any]] = []
    for n in counts:
        rows += _judged(_measure(n, asked), n, arguments.against)
        if arguments.json != "-":
            for row in rows[-len(asked["sizes"]) - len(asked["models"]) :]:
                print(line(row), flush=True)
    write(arguments.json, {"bench": "torch", **asked, "rows": rows})
    return 0


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    ours, theirs, times = (row[key] for key in ("psframe_ms", "against_ms", "ratio"))
    measured = f"psframe {ours['median']:>10.4g} ms   {row['against']} {theirs['median']:>10.4g} ms"
    ratio = f"{times['median']:.3g} times as fast ({times['low']:.3g} to {times['high']:.3g})"
    return f"{row['ranks']:>3} ranks  {row['what']:<24} {measured}   {ratio}"


def _sizes(text: str) -> list[int]:
    sizes = counts_of(text, MOST_BYTES)
    if not sizes:
        raise UserError(f"--sizes must be bytes from 1 to {MOST_BYTES:,}, with commas, got {text!r}; mend it")
    return list(sizes)


def _models(text: str) -> list[str]:
    names = [name for name in text.split(",") if name and name != "none"]
    for name in names:
        if name not in MODELS:
            raise UserError(f"--models must name some of {', '.join(MODELS)}, got {name!r}; mend it")
    return names


def _judged(times: dict[str, Any], n: int, against: str) -> list[dict[str, Any]]:
    """Return a row for each thing measured, from seconds by backend and round."""
    rows = []
    for what, (ours, theirs) in times.items():
        ratios = [there / here for here, there in zip(ours, theirs, strict=True)]
        in_ms = [spread([1000 * seconds for seconds in found]) for found in (ours, theirs)]
        rows.append(
            {
                **{"ranks": n, "what": what, "against": against},
                **{"psframe_ms": in_ms[0], "against_ms": in_ms[1], "ratio": spread(ratios)},
            }
        )
    return rows


def _measure(n: int, asked: dict[str, Any]) -> dict[str, Any]:
    """Start ``n`` ranks, and return what the first one prints."""
    with reserved_port() as port:
        return _ended(_started(n, port, asked))


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a TCP port of all addresses of this machine for a rank that is yet to listen there.

    A port that is bound and let go again can be given to another process first. This one stays bound, without
    listening: Linux then gives it to nobody who asks for any port, and lets a socket with SO_REUSEADDR, as that of
    ``TCPStore``, listen on it.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", 0))
        yield held.getsockname()[1]


def _started(n: int, port: int, asked: dict[str, Any]) -> list[subprocess.Popen]:
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "psframe.bench.torch_rank", json.dumps(asked)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(n)
    ]


def _ended(ranks: list[subprocess.Popen]) -> dict[str, Any]:
    """Return what the first rank prints; whatever ends this, none of them is left."""
    until = time.monotonic() + TIMEOUT_S
    try:
        while (said := _said(ranks[0])) is None:
            if any(process.poll() for process in ranks):
                break  # the others wait for it
            if time.monotonic() > until:
                raise UserError(f"ranks must end within {TIMEOUT_S} s, and did not; measure less")
        failed = any(process.poll() for process in ranks)
        for process in ranks if not failed else ():
            failed |= process.wait(END_S) != 0
    except subprocess.TimeoutExpired:
        failed = True
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if failed or not said:
        raise UserError("a rank must end well, and did not; what it printed is above")
    return dict(json.loads(said.splitlines()[-1]))


def _said(process: subprocess.Popen) -> bytes | None:
    """Return all that a process prints; None while it runs."""
    try:
        return bytes(process.communicate(timeout=LOOK_S)[0])
    except subprocess.TimeoutExpired:
        return None
