"""The parts of docs/how-to/extend.md train as they are written there."""

import inspect
import json
import re
import shlex

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT
from tests.helpers.own import Rows
from tests.helpers.thinned import thinned

DOCS = (ROOT / "docs" / "how-to" / "extend.md").read_text()
COMMANDS = re.findall(r"^ *mpirun -n \d python -m psframe\.train (configs/\S+ .*my_(?:parts|rows).*)$", DOCS, re.M)
SAYS = {
    "EveryThird": ("EveryThird", "my_parts:EveryThird over shared"),
    "Logged": ("collective=my_parts:Logged", "mean of "),
    "Logged into a file": ("file: exchanges.log", "allreduce over my_parts:Logged"),
    "Counted": ("Counted", "rank 2: "),
}
SHORT = ["train.epochs=2", "dataset.limit=1000", "model=tests.helpers.tiny:build"]


def command(part):
    (found,) = [command for command in COMMANDS if part in command]
    return found


def trained(tmp_path, n, words):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    keys = [*SHORT, f"record.dir={tmp_path / 'runs'}"]
    ended = launcher.run(mpi, n, ["-m", "psframe.train", *words, *keys], PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    return ended


def test_every_part_has_a_command():
    assert len(COMMANDS) == len(SAYS) + 1  # that of my_rows


@pytest.mark.parametrize("name", thinned(SAYS, (3,)))
def test_part_trains(name, tmp_path):
    (found,) = re.findall(r"```python\n(# my_parts\.py.*?)```", DOCS, re.DOTALL)
    (tmp_path / "my_parts.py").write_text(found)
    part, says = SAYS[name]
    log = tmp_path / "exchanges.log"
    ended = trained(tmp_path, 3, shlex.split(command(part).replace(log.name, str(log))))
    assert says in ended.out + ended.err
    first, last = re.findall(r"loss ([0-9.]+)", ended.out)
    assert float(last) < float(first)
    if part.endswith(log.name):
        assert re.fullmatch(r"(mean of \d+: [\d.]+ ms\n)+", log.read_text())
        assert "mean of" not in ended.err


def hashes(tmp_path):
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    return [json.loads(line)["params_sha256"] for line in metrics.read_text().splitlines()]


@pytest.mark.full
@pytest.mark.parametrize("keys", [(), ("sync.mode=allreduce",)], ids=" ".join)
def test_canonical_collective_has_the_bits_of_buffer(keys, tmp_path):
    """On four ranks, so that there are three workers: two addends are the same in either order."""
    (found,) = re.findall(r"```python\n(# my_rows\.py.*?)```", DOCS, re.DOTALL)
    assert inspect.getsource(Rows) in found, "docs/how-to/extend.md must show what tests/helpers/own.py has"
    ends = []
    for at, words in enumerate((command("my_rows"), "configs/quickstart.yaml collective=buffer")):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "my_rows.py").write_text(found)
        trained(tmp_path / str(at), 4, [*shlex.split(words), *keys])
        ends.append(hashes(tmp_path / str(at)))
    assert ends[0] == ends[1]
    assert len(set(ends[0])) == 2, "training changed nothing"
