"""The parts of docs/how-to/extend.md train as they are written there."""

import re
import shlex

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT

DOCS = (ROOT / "docs" / "how-to" / "extend.md").read_text()
COMMANDS = re.findall(r"^ *mpirun -n 3 python -m psframe\.train (configs/\S+ .*my_parts.*)$", DOCS, re.MULTILINE)
SAYS = {"EveryThird": "my_parts:EveryThird over buffer", "Logged": "exchange of ", "Counted": "rank 2: "}


def test_every_part_has_a_command():
    assert len(COMMANDS) == len(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_part_trains(name, tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (found,) = re.findall(r"```python\n(# my_parts\.py.*?)```", DOCS, re.DOTALL)
    (tmp_path / "my_parts.py").write_text(found)
    (command,) = [command for command in COMMANDS if name in command]
    keys = ["train.epochs=2", "dataset.limit=1000", "model=tests.helpers.tiny:build", f"record.dir={tmp_path / 'runs'}"]
    ended = launcher.run(mpi, 3, ["-m", "psframe.train", *shlex.split(command), *keys], PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    assert SAYS[name] in ended.out + ended.err
    first, last = re.findall(r"loss ([0-9.]+)", ended.out)
    assert float(last) < float(first)
