"""The examples of the documentation train, and its keys and names are those of the code."""

import json
import os
import re
import shlex
import subprocess
import sys

import msgspec
import pytest
import yaml

from psframe.config import schema
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.memory.placement import TABLE as PLACEMENTS
from psframe.tensors import tensors
from tests.helpers import launcher, torchrun
from tests.helpers.families import FAMILIES
from tests.helpers.launcher import ROOT
from tests.helpers.said import told

DOCS = ROOT / "docs"


def block(page, language, begins=""):
    """Return the block of a page of the documentation that begins so."""
    (found,) = re.findall(rf"```{language}\n({begins}.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return found


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync.server=dedicated", "sync.server=colocated", "sync.mode=allreduce"])
def test_strategies_of_a_users_own(mode, tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "my_module.py").write_text(block("how-to/extend.md", "python", "# my_module.py"))
    keys = ["collective=my_module:MyCollective", "model=my_module:my_model", "dataset=my_module:my_data"]
    keys += [
        "optimizer=my_module:MySGD",
        "placement.parameters=my_module:MyPlacement",
        "train.reproducible=none",
        mode,
        f"record.dir={tmp_path / 'runs'}",
    ]
    command = ["-m", "psframe.train", "configs/quickstart.yaml", "train.epochs=2", "dataset.limit=2000", *keys]
    ended = launcher.run(mpi, 3, command, PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    assert "over my_module:MyCollective" in ended.out
    first, last = re.findall(r"loss ([0-9.]+)", ended.out)
    assert float(last) < float(first)


@pytest.mark.full
def test_metric_of_a_users_own(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "my_metric.py").write_text(block("how-to/metrics.md", "python", "# my_metric.py"))
    asked = "[confusion, my_metric:Distance]"  # as it is written without keys
    keys = [f"record.metrics={asked}", f"record.dir={tmp_path / 'runs'}", "train.epochs=1", "dataset.limit=1000"]
    ended = launcher.run(mpi, 3, ["-m", "psframe.train", "configs/quickstart.yaml", *keys], PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    values = json.loads(metrics.read_text())["metrics"]
    counts = {abs(i - j): 0 for i in range(10) for j in range(10)}
    for i, row in enumerate(values["confusion"]):
        for j, n in enumerate(row):
            counts[abs(i - j)] += n
    mean = sum(apart * n for apart, n in counts.items()) / sum(counts.values())
    assert values["distance"] == [pytest.approx(mean, rel=1e-12), max(apart for apart, n in counts.items() if n)]


@pytest.mark.full
@pytest.mark.parametrize(("page", "name"), [("fit", "my_script"), ("callbacks", "my_run"), ("sklearn", "my_search")])
def test_script_that_is_shown_runs(page, name, tmp_path):
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed: pip install -e .[script]")
    if page == "sklearn":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install -e .[sklearn]")
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / f"{name}.py").write_text(block(f"how-to/{page}.md", "python", f"# {name}.py"))
    env = {**os.environ, "PATH": f"{mpi.prefix / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, f"{name}.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended
    assert ended.stdout, ended


@pytest.mark.full
def test_network_that_is_shown_trains(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "my_network.py").write_text(block("how-to/layers.md", "python", "# my_network.py"))
    shown = re.findall(
        r"^mpirun -n (\d) python (.*my_network.*)$", (DOCS / "how-to/layers.md").read_text(), re.MULTILINE
    )
    assert len(shown) == 2
    for n, words in shown:
        # by BLAS: the fast kernels of so many shapes would take a minute to compile
        command = [*shlex.split(words), "nn.kernels=blas", f"record.dir={tmp_path / 'runs'}", "dataset.limit=500"]
        ended = launcher.run(mpi, int(n), command, PYTHONPATH=str(tmp_path))
        assert ended.status == 0, ended


@pytest.mark.full
def test_script_of_pytorch_that_is_shown_runs(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    script = tmp_path / "train_ddp.py"
    script.write_text(block("how-to/torch-backend.md", "python", "# train_ddp.py"))
    ended = torchrun.run(3, [script])
    assert ended.status == 0, ended
    assert sorted(re.findall(r"rank (\d)", ended.out)) == ["0", "1", "2"]


@pytest.mark.full
def test_pytorch_network_of_a_users_own(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "my_net.py").write_text(block("tutorials/pytorch.md", "python", "# my_net.py"))
    (model,) = re.findall(r'^ +model="(.*my_net.*)"$', (DOCS / "tutorials/pytorch.md").read_text(), re.MULTILINE)
    keys = [f"model={model}", f"record.dir={tmp_path / 'runs'}"]
    command = ["-m", "psframe.train", "configs/quickstart.yaml", "train.epochs=2", "dataset.limit=2000", *keys]
    ended = launcher.run(mpi, 4, command, PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    first, last = re.findall(r"loss ([0-9.]+)", ended.out)
    assert float(last) < float(first)
    (run,) = (tmp_path / "runs").iterdir()
    assert tensors(run)["1.norm.running_var"].shape == (8,)


def test_sync_mode_of_a_users_own_has_the_bits_of_allreduce(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (found,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "explanation" / "sync.md").read_text(), re.DOTALL)
    (tmp_path / "my_module.py").write_text(found)
    ends = []
    for mode in ("my_module:MyMode", "allreduce"):
        keys = ["train.epochs=1", "dataset.limit=1000", f"record.dir={tmp_path / mode.partition(':')[0]}"]
        ended = launcher.run(
            mpi,
            2,
            ["-m", "psframe.train", "configs/quickstart.yaml", f"sync.mode={mode}", *keys],
            PYTHONPATH=str(tmp_path),
        )
        assert ended.status == 0, ended
        (metrics,) = (tmp_path / mode.partition(":")[0]).glob("*/metrics.jsonl")
        ends.append(re.findall('"params_sha256": "([0-9a-f]+)"', metrics.read_text()))
    assert ends[0] == ends[1] != []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("tests.helpers.own:SignSGD", "a sync mode must have server, open and step, got <tests.helpers.own.SignSGD"),
        ("psframe.errors:UserError", "sync: 'psframe.errors:UserError' must take 0 positional argument(s)"),
        ("threading:Event", "a sync mode must have server, open and step, got <threading.Event"),
    ],
)
def test_sync_mode_that_is_none_is_refused_in_a_sentence(wrong, said):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    keys = [f"sync={{mode: '{wrong}'" + (", lr: 0.1}" if "SGD" in wrong else "}")]
    ended = launcher.run(mpi, 2, ["-m", "psframe.train", "configs/quickstart.yaml", *keys])
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert said in line
    assert "Traceback" not in ended.err


def test_sync_mode_whose_ranks_drift_apart_is_refused_in_a_sentence(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    keys = ["sync.mode=tests.helpers.own:Alone", "collective=buffer", f"record.dir={tmp_path}"]
    keys += ["dataset.limit=1000", "optimizer.lr=0.0001", "model=tests.helpers.tiny:build"]
    ended = launcher.run(mpi, 3, ["-m", "psframe.train", "configs/quickstart.yaml", *keys])
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "Alone.step must leave all ranks with the same parameters, got 3 different ones of 3 ranks" in line


@pytest.mark.full
def test_collective_of_a_users_own_refuses_what_it_cannot_do(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "my_module.py").write_text(block("how-to/extend.md", "python", "# my_module.py"))
    command = ["-m", "psframe.train", "configs/quickstart.yaml", "collective=my_module:MyCollective"]
    ended = launcher.run(mpi, 3, command, PYTHONPATH=str(tmp_path))
    assert ended.status == 2
    assert ended.err.count("give train.reproducible=none") == 1


SHOWN_CASE = """
import sys
import case_broadcast as module
from tests.ranks import harness

harness.cases = lambda: {name: case for name, case in vars(module).items() if hasattr(case, "ranks")}
harness.main(*sys.argv[1:])
"""


def test_case_over_ranks_that_is_shown_passes(tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    (tmp_path / "case_broadcast.py").write_text(block("developer/testing.md", "python", '"""What a run begins with'))
    report = tmp_path / "report.jsonl"
    ended = launcher.run(mpi, 2, ["-c", SHOWN_CASE, str(report)], PYTHONPATH=str(tmp_path))
    assert ended.status == 0, ended
    (line,) = map(json.loads, report.read_text().splitlines())
    assert line["case"] == "parameters_of_rank_0_reach_every_rank"
    assert not line["errors"]


def test_case_of_a_users_own_that_is_shown_is_one_of_the_suite():
    shown = block("developer/testing.md", "python", '"""A collective of a user\'s own')
    assert shown == (ROOT / "tests" / "ranks" / "case_own.py").read_text()


def test_config_shows_every_key_with_its_default():
    shown = yaml.safe_load(block("reference/config.md", "yaml", "name: "))
    assert set(shown) == {f.name for f in msgspec.structs.fields(schema.Config)} - {"versions"}
    resolved = msgspec.to_builtins(schema.resolve({"name": "fashion", "model": "lenet", "dataset": "fashion_mnist"}))
    for role in ROLES:
        shown["placement"][role] = spelled_out(shown["placement"][role])
    for section in ("train", "parallel", "schedule", "placement", "affinity", "checkpoint", "record", "fault"):
        assert shown[section] == resolved[section], section


@pytest.mark.parametrize("table", [*FAMILIES.values(), PLACEMENTS])
def test_strategies_are_all_named(table):
    """In the tables by hand, too; ``docs/reference/generated`` has them anyway."""
    pages = ("reference/modes.md", "reference/data.md", "reference/records.md", "tutorials/memory.md")
    text = "".join((DOCS / page).read_text() for page in pages)
    for name in table:
        assert f"`{name}`" in text, name


def test_configs_are_those_of_this_version():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert schema.read(str(path)).name == path.stem
