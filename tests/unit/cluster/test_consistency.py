"""What is held against other nodes; the rest needs ranks: tests/ranks/case_consistency.py."""

import shutil
from pathlib import Path

import psframe
from psframe.cluster import consistency


def test_code_is_what_lies_in_the_package(tmp_path):
    package = Path(psframe.__file__).parent
    kept = shutil.ignore_patterns("__pycache__")
    same, other, fewer = (shutil.copytree(package, tmp_path / name, ignore=kept) for name in ("a", "b", "c"))
    assert consistency.code(same) == consistency.code()
    (other / "sync" / "base.py").write_text("# another one\n")
    (fewer / "optim" / "rules.py").unlink()
    assert len({consistency.code(folder) for folder in (same, other, fewer)}) == 3


def test_compiled_files_make_no_difference(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = consistency.code(tmp_path)
    (tmp_path / "a.so").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").write_text("1")
    assert consistency.code(tmp_path) == before
