"""Mutants, and copies of the checkout that they are tried in."""

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.helpers.suite import DEFAULT

ROOT = Path(__file__).resolve().parents[2]
SAYS = "What is wrong: "
COMPILED = (".pyx", ".pxd", ".h")
LOOK_S = 2.0
PYTEST = (".venv/bin/python", "-m", "pytest", "-x", "-q", "-m", DEFAULT, "-p", "tests.mutants.order")
#: exit statuses of pytest; BROKEN: a test cannot be imported, GONE: there is none of this name (any more)
PASSED, FAILED, BROKEN, GONE, NONE = 0, 1, 2, 4, 5


class UnableError(Exception):
    """A mutant that cannot be tried, or a copy that is none."""


@dataclass(frozen=True)
class Mutant:
    """A patch, what it makes wrong, and the files that it changes."""

    path: Path
    wrong: str
    files: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        said = path.read_text()
        files = tuple(re.findall(r"^\+\+\+ b/(\S+)$", said, re.M))
        if not said.startswith(SAYS) or not files:
            raise UnableError(f"{path.name} must begin with `{SAYS}...` and change a file")
        return cls(path, said.partition("\n")[0].removeprefix(SAYS), files)


@dataclass(frozen=True)
class Copy:
    """A clone of the checkout with its environments; pytest is ended there where no test ends for ``patience_s``."""

    folder: Path
    patience_s: float

    def command(self, *words: str, why: str) -> str:
        """Run a command there and return what it prints; UnableError with ``why`` where it fails."""
        ended = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, errors="replace")
        if ended.returncode:
            raise UnableError(f"{why} ({(ended.stderr.strip() or ended.stdout.strip())[-500:]})")
        return ended.stdout

    def prepare(self) -> None:
        """Make the clone and its environments, if it is not there, which takes minutes; else look whether it is one."""
        if not self.folder.exists() or not any(self.folder.iterdir()):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.command("git", "clone", "--quiet", str(ROOT), ".", why=f"{ROOT} must be a checkout that can be cloned")
            self.command("bash", "launch/test.sh", "--collect-only", why="launch/test.sh must make the environments")
        top = self.command("git", "rev-parse", "--show-toplevel", why=f"{self.folder} must be a checkout").strip()
        if self.folder.samefile(ROOT) or not self.folder.samefile(top):
            raise UnableError(f"--folder must be a copy of the checkout, got {self.folder}; let it be made")
        changed = self.command("git", "status", "--porcelain", "--untracked-files=no", why="git must tell of changes")
        if changed:
            raise UnableError(f"{self.folder} must be as committed, got changes in {changed.splitlines()[0][3:]}")
        if not (self.folder / PYTEST[0]).exists():
            raise UnableError(f"{self.folder} must have environments; run `bash launch/test.sh --collect-only` there")

    def judge(self, mutant: Mutant) -> None:
        """UnableError where a mutant does not apply."""
        self._apply(mutant, "--check")

    def put_in(self, mutant: Mutant) -> None:
        self._apply(mutant)
        self._build(mutant)

    def take_out(self, mutant: Mutant) -> None:
        self.command("git", "checkout", "--quiet", "--", ".", why=f"git must take {mutant.path.name} out again")
        self._build(mutant)

    def _apply(self, mutant: Mutant, *how: str) -> None:
        self.command("git", "apply", *how, str(mutant.path), why=f"{mutant.path.name} must apply to the checkout")

    def _build(self, mutant: Mutant) -> None:
        """Build the extensions again, if a mutant changes what they are made from, and forget what Python compiled."""
        for path in map(self.folder.joinpath, mutant.files):
            for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):  # told by whole seconds, and by its size
                stale.unlink()
        if any(name.endswith(COMPILED) for name in mutant.files):
            words = (PYTEST[0], "setup.py", "--quiet", "build_ext", "--inplace")
            self.command(*words, why=f"{mutant.path.name} must build")

    def killer(self, words: Iterable[str]) -> str:
        """Return the first test of those given to pytest that fails, or that it hung; "" where all pass."""
        status, said = self._pytest(words)
        if status in (PASSED, GONE, NONE):
            return ""
        if status is None:
            return f"time-out: no test ended for {self.patience_s / 60:g} minutes"
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.M)
        if status not in (FAILED, BROKEN) or not found:
            raise UnableError(f"pytest must run in {self.folder}, got exit status {status} ({said.strip()[-500:]})")
        return found[1]

    def fails(self, test: str) -> bool:
        """Whether a test fails by itself."""
        return self._pytest([test])[0] == FAILED

    def _pytest(self, words: Iterable[str]) -> tuple[int | None, str]:
        """Return the exit status of pytest, None where it hung and was ended, and what it printed."""
        environment = {**os.environ, "PATH": f"{self.folder / '.venv/bin'}:{os.environ['PATH']}"}
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*PYTEST, *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = self._status(process, said.fileno())
            finally:
                if process.poll() is None:
                    end([psutil.Process(process.pid)])
                    process.wait()
            said.seek(0)
            return status, said.read().decode(errors="replace")

    def _status(self, process: "subprocess.Popen[bytes]", said: int) -> int | None:
        n_bytes, since = -1, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_S)
            if (now := os.fstat(said).st_size) != n_bytes:  # the letter of a test that has ended
                n_bytes, since = now, time.monotonic()
            elif time.monotonic() - since > self.patience_s:
                return None


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and all that they have started."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
