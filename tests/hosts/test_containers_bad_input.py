"""What launch/containers.sh cannot do is one sentence and exit status 2, and leaves nothing behind."""

import os
import shutil
import subprocess

import pytest

from tests.hosts.containers import SCRIPT, end, start


def refused(arguments, **more):
    """Return the one sentence that a call ends with."""
    status, out, err = end(start(arguments, **more), 60)
    assert (status, out, err.count("\n")) == (2, "", 1), (status, out, err)
    assert err.startswith("psframe: ")
    return err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a command must follow the options, got none"),
        (["-c", "2"], "a command must follow the options, got none"),
        (["-c"], "-c must have a value, got none"),
        (["-c", "-1", "true"], "0 to 64, got '-1'"),
        (["-c", "65", "true"], "0 to 64, got '65'"),
        (["-c", "two", "true"], "0 to 64, got 'two'"),
        (["-c", "1 2", "true"], "0 to 64, got '1 2'"),
        (["-c", "1,,2", "true"], "0 to 64, got '1,,2'"),
        (["--engine", "lxc", "true"], "podman or docker, got 'lxc'"),
        (["--share", "true"], "got '--share'"),
    ],
)
def test_argument_that_cannot_be_is_told(arguments, told):
    assert told in refused(arguments)


def test_help_shows_how_to_start_it():
    status, out, err = end(start(["-h"]), 30)
    assert (status, err) == (0, "")
    assert "bash launch/containers.sh [-c 4]" in out


def test_networks_are_made_by_root_alone():
    user = [] if os.getuid() else ["setpriv", "--reuid=65534", "--clear-groups"]
    if user and not shutil.which("setpriv"):
        pytest.skip("no setpriv here (Debian: util-linux)")
    ended = subprocess.run([*user, "bash", SCRIPT, "true"], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "must be made by root, got user" in ended.stderr


@pytest.fixture
def tools(tmp_path):
    """Return a function that makes a PATH on which there are only some programs: real ones, or ones that a text is."""
    if os.getuid() != 0:
        pytest.skip("who is not root is told so first")

    def make(**programs):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("bash", "id", "dirname", "mktemp", "rm", "xargs", "head", "awk", "seq", "sh"):
            (folder / name).symlink_to(shutil.which(name))
        for name, text in {"ip": "exit 0", "nsenter": "exit 0", "flock": "exit 0", **programs}.items():
            if text:
                (folder / name).write_text(f"#!/bin/sh\n{text}\n")
                (folder / name).chmod(0o755)
        (tmp_path / "tmp").mkdir()
        return {"PATH": str(folder), "TMPDIR": str(tmp_path / "tmp")}

    return make


HYDRA = {"python": "exit 0", "mpirun": "echo HYDRA"}
NO = "echo 'Error: no' >&2; echo more >&2; exit 125"


@pytest.mark.parametrize(
    ("options", "programs", "told"),
    [
        ([], {"ip": ""}, "ip must be on PATH, got none"),
        ([], {}, "podman or docker must be on PATH, got neither"),
        (["--engine", "docker"], {"podman": "exit 0"}, "--engine docker must be on PATH, got none"),
        ([], {"docker": "echo 'Cannot connect' >&2; exit 1"}, "docker's daemon must answer, got 'Cannot connect'"),
        ([], {"docker": "exit 0"}, "docker must have an --image, got none"),
        ([], {"podman": "exit 0"}, "psframe's python must be on PATH, got none"),
        ([], {"podman": "exit 0", "python": "exit 0"}, "an mpirun must be on PATH, got none"),
        ([], {"podman": "exit 0", **HYDRA, "mpirun": "echo Open MPI"}, "must be MPICH's, got 'Open MPI'"),
        ([], {"podman": NO, **HYDRA}, "podman must start a container that has psframe's python, got 'Error: no'"),
        ([], {"podman": NO, "runc": "exit 0", **HYDRA}, "podman must start a container"),
        ([], {"podman": "exit 0", **HYDRA, "ip": "echo denied >&2; exit 1"}, "must be allowed, got 'denied'"),
    ],
)
def test_missing_requirements(options, programs, told, tools, tmp_path):
    assert told in refused([*options, "true"], env=tools(**programs))
    assert not list((tmp_path / "tmp").iterdir())
