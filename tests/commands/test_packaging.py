"""What a user installs: the wheel that is built from the sdist trains away from the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT


def run(*command, **kwargs):
    ended = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=1800, **kwargs)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel made from it alone."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)  # a wheel, by way of the sdist
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.mark.full
def test_sdist_holds_the_sources_and_the_wheel_the_modules(built):
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "models/lenet.py",
        "datasets/idx.py",
        "psframe/compiled/_random.pyx",
    } <= sources
    modules = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "psframe/models/lenet.py",
        "psframe/datasets/idx.py",
        "psframe/train/command.py",
        "psframe/report/style.css",
    } <= modules
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert {f"psframe/compiled/{name}{suffix}" for name in ("_random", "_elementwise", "_batch")} <= modules
    assert not any(name.startswith(("models/", "datasets/", "tests/")) for name in modules)


@pytest.mark.full
def test_wheel_trains_the_quickstart_away_from_the_checkout(built, tmp_path):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, built[1])
    # what psframe needs is taken from this environment, whose own editable psframe is not found by a plain path
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copy(ROOT / "configs" / "quickstart.yaml", tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    where = run(python, "-c", "import psframe.models as m; print(m.__file__)", cwd=tmp_path)
    assert str(site) in where
    mpirun = mpi.prefix / "bin" / "mpirun"
    command = [mpirun, "-n", 4, python, "-m", "psframe.train", "quickstart.yaml"]
    out = run(
        *command, cwd=tmp_path, env={**os.environ, "MPI4PY_LIBMPI": str(next(mpi.prefix.glob("lib/libmpi.so.*")))}
    )
    assert "a dedicated server and 3 worker(s)" in out
    (quickstart,) = (tmp_path / "runs").iterdir()
    assert (quickstart / "checkpoints" / "latest").read_text().startswith("epoch-00012-")
    assert json.loads((quickstart / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"] >= 0.96


@pytest.mark.parametrize("name", ["random", "elementwise", "batch"])
def test_module_not_built_is_told_with_command_that_builds_it(name, monkeypatch):
    from psframe import compiled
    from psframe.errors import UserError

    monkeypatch.setitem(sys.modules, f"psframe.compiled._{name}", None)  # as where it cannot be imported
    compiled.__dict__.pop(name, None)
    with pytest.raises(UserError, match=r"pip install -e \."):
        getattr(compiled, name)


def test_missing_mpi_is_told_with_command_that_installs_it():
    program = (
        "import sys, runpy; sys.modules['mpi4py.MPI'] = None; runpy.run_module('psframe.train', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "pip install mpich" in ended.stderr


def test_compiled_has_no_other_attribute():
    from psframe import compiled

    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing


@pytest.mark.full
def test_manylinux_wheel_runs_the_quickstart_without_a_compiler(tmp_path):
    """As a new user does it: an empty environment, the wheel, an MPI from the index."""
    run("bash", "launch/wheels.sh", sys.executable, cwd=ROOT)
    (wheel,) = (ROOT / "dist").glob(f"psframe-*-cp{sys.version_info.major}{sys.version_info.minor}-*manylinux*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    bare = {**os.environ, "PATH": "/nowhere", "CC": "/bin/false"}
    run(tmp_path / "env/bin/pip", "install", "--quiet", wheel, "mpich", env=bare)
    out = run(tmp_path / "env/bin/psframe", "quickstart", "train.epochs=2", cwd=tmp_path, env=bare)
    assert "on digits (1,442 training and 355 test samples)" in out
    assert (tmp_path / "runs").is_dir()
