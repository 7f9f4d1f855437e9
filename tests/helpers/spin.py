"""Models of protocols, and Spin, which goes through all of their states."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[1] / "models"


def checked(model, folder, *options, **defined):
    """Go through all states of a model, of MODELS or anywhere; return what Spin's verifier says, given its options."""
    if not shutil.which("spin"):
        pytest.skip("no spin, which goes through the states of models: apt-get install spin")
    words = [f"-D{name}" if value is True else f"-D{name}={value}" for name, value in defined.items()]
    for command in (
        ["spin", *words, "-a", str(MODELS / model)],
        ["gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        ["./pan", "-m100000", *options],
    ):
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert "max search depth too small" not in ended.stdout
    return ended.stdout
