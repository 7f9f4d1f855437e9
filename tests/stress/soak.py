"""Train for long with pauses at random, and see that no rank's memory, descriptors or mappings grow.

    python -m tests.stress.soak --ranks 64 --minutes 30 [--mpi openmpi] [--seed S] [KEY=VALUE ...]

Prints a table of slopes an hour, and exits with 1 where something grew, a rank died, or something was left behind.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from tests.helpers.launcher import ROOT, Mpi, installed
from tests.helpers.live import left_in_shm, processes_of

CONFIG = """\
model: tests.helpers.tiny:build
dataset: {{name: synthetic, shape: [1, 12, 12], classes: 10, samples: 20000}}
train: {{epochs: 1000000, batch_size: 8, seed: {seed}}}
optimizer: {{lr: 0.001, momentum: 0.9}}
record: {{dir: {folder}/runs}}
checkpoint: {{every_epochs: 0}}
fault: {{slow_rank: all, slow_steps: 20, slow_share: 0.05}}
"""

#: what is sampled of each rank, and by how much it may rise from the first to the last quarter of what is judged
ALLOWED = {"MiB of memory": 1.0, "descriptors": 0.0, "mappings": 4.0}
WARM_UP = 1 / 3  # of the time, in which allocators fill their caches
END_S = 60.0


@dataclass
class Series:
    """Samples of one rank: when, in seconds, and (n,) of each of ``ALLOWED``."""

    at_s: list[float] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)

    def settled(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return times and samples after the warm-up."""
        at_s, values = np.array(self.at_s), np.array(self.values)[:, number]
        kept = at_s >= at_s[0] + WARM_UP * (at_s[-1] - at_s[0])
        return at_s[kept], values[kept]


def slope(at_s: np.ndarray, values: np.ndarray) -> float:
    """Return the least-squares slope, an hour."""
    apart = at_s - at_s.mean()
    return float(3600 * apart @ values / (apart @ apart))


def rise(values: np.ndarray) -> float:
    """Return by how much all samples of the last quarter are above all of the first: what rises and falls has none."""
    quarter = max(1, len(values) // 4)
    return float(values[-quarter:].min() - values[:quarter].max())


def check(ranks: list[Series]) -> tuple[list[str], list[str]]:
    """Return the lines of the table, and what grew."""
    lines = ["| of a rank | at the end: median, most | slope an hour: median, 5 to 95 % of the ranks | rose most by |"]
    lines, grew = [*lines, "|---|---|---|---|"], []
    for number, (name, allowed) in enumerate(ALLOWED.items()):
        settled = [rank.settled(number) for rank in ranks]
        last = [values[-1] for _, values in settled]
        slopes = [slope(*of_rank) for of_rank in settled]
        most = max(rise(values) for _, values in settled)
        low, high = np.percentile(slopes, [5, 95])
        lines.append(
            f"| {name} | {np.median(last):.1f}, {max(last):.1f} | {np.median(slopes):+.2f}, {low:+.2f} to {high:+.2f} "
            f"| {max(most, 0):.2f} (allowed: {allowed:g}) |"
        )
        if most > allowed:
            grew.append(f"{name} grew by {most:.2f} in a rank")
    return lines, grew


def soak(mpi: Mpi, n: int, seconds: float, config: Path, *keys: str) -> list[Series]:
    """Train on ``n`` ranks for so long and return the samples of each; AssertionError where that goes wrong."""
    command = mpi.command(n, ["-m", "psframe.train", str(config), "--quiet", *keys])
    period_s = max(0.5, min(5.0, seconds / 60))
    with (config.parent / "stderr").open("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            samples = _sampled(process, n, seconds, period_s, config)
        finally:
            _end(process, config)
            said.seek(0)
            sys.stderr.write(said.read())
    return samples


def _sampled(process: subprocess.Popen, n: int, seconds: float, period_s: float, config: Path) -> list[Series]:
    series: dict[int, Series] = {}
    began = time.monotonic()
    while not series or time.monotonic() - began < seconds:
        try:
            process.wait(period_s)
        except subprocess.TimeoutExpired:
            pass
        assert process.poll() is None, f"the job ended by itself with {process.returncode}"
        if not series:
            assert time.monotonic() - began < 300, "the run does not begin"
            if not list(config.parent.glob("runs/*/metrics.jsonl")):  # written after the first epoch
                continue
            began = time.monotonic()
        ranks = processes_of(str(config))
        assert len(ranks) == n, f"{len(ranks)} of {n} ranks are there"
        for rank in ranks:
            of_rank = series.setdefault(rank.pid, Series())
            of_rank.at_s.append(time.monotonic())
            of_rank.values.append((_private(rank), rank.num_fds(), _mappings(rank)))
    return list(series.values())


def _private(rank: psutil.Process) -> float:
    """Return the MiB that only this rank has: pages of what ranks share are counted in each that has touched them."""
    return rank.memory_full_info().uss / 2**20


def _mappings(rank: psutil.Process) -> int:
    with open(f"/proc/{rank.pid}/maps", "rb") as lines:
        return sum(1 for _ in lines)


def _end(process: subprocess.Popen, config: Path) -> None:
    """Stop the job as Ctrl-C does; what stays behind is killed, and is a mistake."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(processes_of(str(config)), END_S)
    for rank in left:
        rank.kill()
    assert not left, f"{len(left)} ranks stayed behind"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--mpi", choices=["mpich", "openmpi"], default="mpich")
    parser.add_argument("--seed", type=int, default=0, help="of the run, and so of its pauses")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="of the config, as psframe.train takes them")
    given = parser.parse_args()
    mpi = installed(given.mpi)
    if mpi is None:
        parser.error(f"no {given.mpi} is installed: bash launch/test.sh installs it")
    shared = left_in_shm()
    with tempfile.TemporaryDirectory(prefix="psframe-soak-") as folder:
        config = Path(folder) / "soak.yaml"
        config.write_text(CONFIG.format(folder=folder, seed=given.seed))
        samples = soak(mpi, given.ranks, 60 * given.minutes, config, *given.keys)
    lines, wrong = check(samples)
    wrong += [f"/dev/shm/{name} was left behind" for name in sorted(left_in_shm() - shared)]
    drawn = f"seed {given.seed}, {len(samples[0].at_s)} samples of each"
    print(f"{given.ranks} ranks, {given.mpi}, {given.minutes:g} minutes, {drawn}")
    print(*lines, *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
