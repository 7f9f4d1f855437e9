"""The notebooks of the documentation run as they are, without Jupyter."""

import os

import notebooks
import pytest

from tests.helpers import launcher

LONG = ("compare-modes", "first-run", "from-python")
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.full] * (path.stem in LONG))
    for path in sorted(notebooks.FOLDER.glob("*.ipynb"))
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs_and_prints_as_it_shows(path, tmp_path, monkeypatch):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    if "sklearn" in path.read_text():
        pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install -e .[sklearn]")
    monkeypatch.setenv("PATH", f"{mpi.prefix / 'bin'}:{os.environ['PATH']}")
    outputs = notebooks.run(path, tmp_path)
    code = notebooks.code(notebooks.read(path))
    assert len(outputs) == len(code)
    for text, cell in zip(outputs, code, strict=True):
        kept = "".join("".join(output["text"]) for output in cell["outputs"])
        assert text.count("\n") == kept.count("\n"), "run docs/_ext/notebooks.py to keep what it prints now"
