"""What is held against other nodes; the rest needs ranks: tests/ranks/case_alike.py."""

import shutil
from pathlib import Path

from psframe import alike


def test_code_is_what_lies_in_the_package(tmp_path):
    package = Path(alike.__file__).parent
    kept = shutil.ignore_patterns("__pycache__")
    same, other, fewer = (shutil.copytree(package, tmp_path / name, ignore=kept) for name in ("a", "b", "c"))
    assert alike.code(same) == alike.code()
    (other / "sync" / "base.py").write_text("# another one\n")
    (fewer / "halt.py").unlink()
    assert len({alike.code(folder) for folder in (same, other, fewer)}) == 3


def test_compiled_files_make_no_difference(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = alike.code(tmp_path)
    (tmp_path / "a.so").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").write_text("1")
    assert alike.code(tmp_path) == before
