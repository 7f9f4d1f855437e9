"""What the tests in the emulated machine share: its modes booted once each, with what they left behind."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import SETTINGS
from tests.helpers import launcher
from tests.knl import boot

LONGEST_S = 1800  # for a boot and its script: the guest is emulated, beside other tests
#: the guest's CPU is emulated, so nothing is compiled there that can be compiled here, for a CPU that both can be
NUMBA = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"}

SET_UP = f"""
cp -r $OUT/numba /tmp/numba
export NUMBA_CACHE_DIR=/tmp/numba {" ".join(f"{name}={value}" for name, value in (NUMBA | SETTINGS).items())}
train() {{ n=$1; shift; mpirun -n $n python -m psframe.train $OUT/config.yaml record.dir=$OUT/runs "$@"; }}
"""

CONFIG = """\
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 60}
train: {epochs: 2, batch_size: 8, threads: 1}
nn: {kernels: blas}  # which load faster there
optimizer: {lr: 0.05, momentum: 0.9}
"""


@dataclass(frozen=True)
class Left:
    """What a script left in its folder: its output, and files by name."""

    ended: boot.Ended
    folder: Path

    def text(self, name):
        path = self.folder / name
        assert path.exists(), f"the script did not come to {name}: {self.ended}"
        return path.read_text()

    def json(self, name):
        return json.loads(self.text(name))

    def run(self, name):
        """Return metrics and placement of the run of a name."""
        found = sorted((self.folder / "runs").glob(f"{name}-2*"))
        assert len(found) == 1, f"no run {name}: {self.ended}"
        metrics = [json.loads(line) for line in (found[0] / "metrics.jsonl").read_text().splitlines()]
        return metrics, json.loads((found[0] / "placement.json").read_text())


@pytest.fixture(scope="session")
def knl(tmp_path_factory):
    """Return a function that boots a mode with a script, once for each."""
    why = boot.missing() or (None if launcher.installed("mpich") else "no mpich: bash launch/test.sh installs it")
    if why:
        pytest.skip(why)
    cached = tmp_path_factory.mktemp("numba")
    config = cached / "config.yaml"
    config.write_text(CONFIG)
    command = ["-m", "psframe.train", str(config), f"record.dir={cached / 'runs'}", "--quiet", "train.epochs=1"]

    @cache
    def compiled(kernels):
        given = [*command, f"nn.kernels={kernels}"]
        ended = launcher.run(launcher.installed("mpich"), 1, given, NUMBA_CACHE_DIR=str(cached / "numba"), **NUMBA)
        assert ended.status == 0, ended

    @cache
    def booted(mode, script, memory=boot.DEFAULT):
        (cached / "numba").mkdir(exist_ok=True)
        if "train" in script:
            for kernels in ("blas", *["direct"] * ("nn.kernels=direct" in script)):
                compiled(kernels)
        folder = tmp_path_factory.mktemp("knl")
        (folder / "config.yaml").write_text(CONFIG)
        subprocess.run(["cp", "-r", cached / "numba", folder / "numba"], check=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")
            ended = boot.run(mode, SET_UP + script, memory=memory, out=folder, timeout_s=LONGEST_S)
        return Left(ended, folder)

    return booted
