"""Try inputs that reach new places in psframe: ``python -m tests.fuzz TARGET --seconds N [--corpus DIR] [--seed S]``.

Atheris tries them; ``all`` takes the targets in turn. An input that finds a defect is written to the corpus; mend the
defect and keep the input in tests/fuzz/corpus/TARGET, which every run of the tests reads again.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIMITS = ["-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-timeout=20", "-max_len=65536"]
NAMES = "TARGET is one of tests/fuzz/targets.py, or all"


def main() -> int:
    made = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__, epilog=NAMES)
    made.add_argument("target")
    made.add_argument("--seconds", type=int, default=60, help="of each target (default: 60)")
    made.add_argument("--seed", type=int, help="of the inputs that are tried (default: another one each time)")
    made.add_argument("--corpus", type=Path, help="a folder for the inputs that are found, to go on from later")
    arguments = made.parse_args()
    try:
        import atheris
    except ImportError:
        print("tests.fuzz must have Atheris, got none; pip install psframe[fuzz]", file=sys.stderr)
        return 2
    if os.environ.get("PSFRAME_FUZZ_INNER"):
        return _fuzz(atheris, arguments)
    from tests.fuzz.targets import TARGETS

    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1, 2**31)  # 0 would let libFuzzer draw another
    names = list(TARGETS) if arguments.target == "all" else [arguments.target]
    if not set(names) <= set(TARGETS):
        made.error(f"there is no {arguments.target!r}; valid: all, {', '.join(TARGETS)}")
    return max(_watch(name, arguments) for name in names)


def _watch(name: str, arguments: argparse.Namespace) -> int:
    """Run one target in a process of its own, which may die, and say what came of it."""
    words = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(arguments.seconds)]
    words += ["--seed", str(arguments.seed)]
    words += ["--corpus", str(arguments.corpus)] if arguments.corpus else []
    environment = {**os.environ, "PSFRAME_FUZZ_INNER": "1"}
    ended = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    tried = re.findall(r"^#(\d+)\b|Done (\d+) runs", ended.stderr, re.M)
    n_tried = max((int(a or b) for a, b in tried), default=0)
    found = "nothing found" if ended.returncode == 0 else "A DEFECT"
    print(f"{name}: {n_tried:,} inputs from seed {arguments.seed}, {found}", flush=True)
    if ended.returncode:
        print(ended.stderr[-4000:], file=sys.stderr)
    return ended.returncode and 1


def _fuzz(atheris, arguments: argparse.Namespace) -> int:
    with atheris.instrument_imports(include=["psframe"]):
        from tests.fuzz.targets import TARGETS
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        seeds, work = Path(scratch, "seeds"), Path(scratch, "work")
        seeds.mkdir()
        work.mkdir()
        prepared = TARGETS[arguments.target](work)
        for number, seed in enumerate(prepared.seeds):
            (seeds / str(number)).write_bytes(seed)
        found = (arguments.corpus or Path(scratch, "corpus")) / arguments.target
        found.mkdir(parents=True, exist_ok=True)
        kept = Path(__file__).parent / "corpus" / arguments.target
        folders = [str(folder) for folder in (found, seeds, kept) if folder.is_dir()]
        where = f"-artifact_prefix={kept if arguments.corpus is None else found}/found-"
        if arguments.corpus is None:
            kept.mkdir(parents=True, exist_ok=True)
        options = [*LIMITS, f"-max_total_time={arguments.seconds}", f"-seed={arguments.seed}", where]
        atheris.Setup([sys.argv[0], *options, *folders], prepared.read)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
