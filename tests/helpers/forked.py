"""Runs a command without ranks in a fork of the tests' process (:func:`command`), which has imported what it imports.

A new process would spend half a second and more on imports alone. Where imports, or the interpreter's start, are what
is tested, start one.
"""

import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.helpers import failures
from tests.helpers.launcher import ROOT


def command(
    module: str,
    *words: object,
    cwd: Path | str = ROOT,
    timeout_s: float = 300,
    env: Mapping[str, str] = os.environ,
    python: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module words`` and wait; raises TimeoutExpired past the time-out, when it is killed.

    A ``python`` of another environment is started.
    """
    argv = [module, *map(str, words)]
    if python not in (None, Path(sys.executable)):
        words = [str(python), "-m", *argv]
        return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)
    with TemporaryFile() as out, TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _become(argv, str(cwd), dict(env), out, err)
        status = _wait(pid, argv, timeout_s)
        said = [_text(file) for file in (out, err)]
    failures.said(status, *said)
    return subprocess.CompletedProcess(argv, status, *said)


def _wait(pid: int, argv: list[str], timeout_s: float) -> int:
    fd = os.pidfd_open(pid)
    try:
        has_ended = select.select([fd], [], [], timeout_s)[0]
    finally:
        os.close(fd)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not has_ended:
        raise subprocess.TimeoutExpired(argv, timeout_s)
    return status


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _become(argv: list[str], cwd: str, env: dict[str, str], out: IO[bytes], err: IO[bytes]) -> None:
    """Be that command, in the child; does not return."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, number in ((null, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(fd, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.argv, sys.path[0:0] = argv, [cwd]
        for name in (argv[0], f"{argv[0]}.__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)  # it runs again, as the main module
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
