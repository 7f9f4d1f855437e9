"""The tests that a change can break, as arguments for pytest: ``python -m tests.changed [SINCE]``.

Prints test files and cases over ranks, one a line, for what differs from the commit SINCE (HEAD by default) or is not
tracked: the tests that import or name a changed file, or a helper that does, those named after it or after its package,
and changed tests themselves. What can only be seen elsewhere is left to the whole suite.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("tests/unit/test_promises.py", "tests/unit/test_structure.py", "tests/unit/test_tools.py")
#: what every change of psframe is tried with: all modes over all collectives, and whole runs in every mode
SMOKE = ("contract.", "every_mode.")
RANKS, MPI, VIRTUAL_RANKS = "tests/ranks/test_ranks.py", "mpich", "tests/ranks/test_virtual_ranks.py"
MAX_USERS = 6  # of a file whose change runs them all, without slow ones
SLOW = ("knl", "hosts", "stress", "fuzz")  # minutes long each: they run where no other test can tell
NO_USERS = ("mutants", "corpus", "__pycache__", "test_tools.py")  # which name others without using them


def changed(since: str) -> list[str]:
    """Return the paths that differ from a commit, or are not tracked, relative to the checkout."""
    found = []
    for words in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        ended = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"tests.changed must be given a commit of this checkout, got {since!r}: {ended.stderr.strip()}")
        found += ended.stdout.splitlines()
    return found


def module(path: str) -> str | None:
    """Return the module of psframe that a file goes into, if any."""
    top, _, rest = path.partition("/")
    if top not in ("psframe", "models", "datasets"):
        return None
    package = "psframe" if top == "psframe" else f"psframe.{top}"
    return re.sub(r"\.__(init|main)__$", "", f"{package}.{rest.rsplit('.', 1)[0].replace('/', '.')}")


def names(path: str) -> set[str]:
    """Return by what a file is named where it is used: as a module, or by the name of the file."""
    name, stem = path.rpartition("/")[2], Path(path).stem
    if found := module(path):
        return {found} if path.endswith(".py") else {found, name}
    if stem in ("__init__", "__main__"):
        return {path.rpartition("/")[0].replace("/", ".")}
    if name.endswith(".py"):
        return {path.removesuffix(".py").replace("/", ".")}
    return {name, stem} if name.endswith(".c") else {name} if "." in name else set()


@cache
def imports(path: Path) -> set[str]:
    """Return the modules and names that a file imports, with dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def words() -> dict[Path, set[str]]:
    """Return every file of the tests with what it imports, and the names with dots and dashes that stand in it."""
    paths = [path for path in sorted((ROOT / "tests").rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    return {
        path: imports(path) | {word.strip(".") for word in re.findall(r"[\w.-]+", path.read_text(errors="replace"))}
        for path in paths
        if not {*NO_USERS} & {*path.relative_to(ROOT).parts}
    }


def tests() -> set[Path]:
    return set(filter(is_test, words()))


def is_test(path: Path) -> bool:
    """Whether this is a file of tests, or of cases over ranks."""
    return path.suffix == ".py" and path.name.startswith(("test_", "case_"))


def is_slow(test: Path) -> bool:
    return test.relative_to(ROOT).parts[1] in SLOW


def named_after(test: Path, path: str) -> bool:
    """Whether a test is called after a file, or after its package and it, or its folder after its package."""
    if path.startswith("docs/"):  # it is named after what it tells of
        return False
    of, own = Path(path), re.sub(r"^(test|case)_", "", test.stem).lower()
    stem = (of.parent.name if of.stem.startswith("__") else of.stem).strip("_").lower()
    folders = (module(path) or "").split(".")[1:-1]
    package = folders[0] if folders else stem  # a module beside the packages may have a folder of its own
    mirrors = bool(module(path)) and test.parent.parent.name == "unit" and test.parent.name in {package, *folders}
    return mirrors or own in {stem, package, f"{package}_{stem}"}


def compiled_users(path: str) -> list[str]:
    """Return the modules that use what is compiled from a file: it is behind their tests."""
    name = Path(path).stem.strip("_")
    if not path.startswith("psframe/compiled/_"):
        return []
    users = [each for each in (ROOT / "psframe").rglob("*.py") if f"compiled.{name}." in each.read_text()]
    return [str(each.relative_to(ROOT)) for each in users]


def using(path: str) -> set[Path]:
    """Return the files of the tests that name another; of a conftest, and of what nobody names, the tests around it."""
    called, file = names(path), ROOT / path
    found = {user for user, said in words().items() if called & said and user != file}
    if file.name == "conftest.py" or (path.startswith("tests/") and not found and not is_test(file)):
        around = next((folder for folder in file.parents if any(folder in test.parents for test in tests())), ROOT)
        found = {test for test in tests() if around in test.parents}
    return found


def users(path: str) -> set[Path]:
    """Return the tests that use a file, also by way of helpers; where they are many only the whole suite can tell."""
    of, called, every = module(path), names(path), set[Path]()
    importing = {test for test in tests() if called & imports(test)}
    more = direct = using(path)
    while more:
        every |= more
        helpers = {each for each in more if not is_test(each)} if not of else ()  # those reach all modules
        more = {user for helper in helpers for user in using(str(helper.relative_to(ROOT)))} - every
    anyway = importing if of else set()
    wholes = (every & tests(), direct & tests(), importing)
    few = [found for found in wholes if sum(not is_slow(test) for test in found - anyway) <= MAX_USERS]
    if not few or few[0] < every & tests():
        print(f"{path} is behind many tests: run the whole suite, too", file=sys.stderr)
    return anyway.union(*few[:1])


def concerned(path: str) -> set[Path]:
    """Return the tests that a file's change can break, without those that are slow, if there are others."""
    sources = [path, *compiled_users(path)]
    found = {test for test in tests() if any(named_after(test, source) for source in sources)} | users(path)
    folder = path.removeprefix("tests/").partition("/")[0]
    fast = {test for test in found if not is_slow(test) or test.relative_to(ROOT).parts[1] == folder}
    return fast if fast or module(path) else found


def chosen(paths: list[str]) -> list[str]:
    """Return what to give to pytest for changed files."""
    found, cases = {*ALWAYS}, set(SMOKE if any(map(module, paths)) else ())
    themselves = {ROOT / path for path in paths} & tests()
    for test in themselves.union(*map(concerned, paths)):
        if test.name.startswith("case_") and test.parent.name == "torch":
            found.add("tests/torch/test_torch_cases.py")
        elif test.name.startswith("case_"):
            cases.add(f"{test.stem.removeprefix('case_')}.")
        elif (name := str(test.relative_to(ROOT))) not in (RANKS, VIRTUAL_RANKS):
            found.add(name)
    return sorted(found) + _over_ranks(cases)


def _over_ranks(prefixes: set[str]) -> list[str]:
    from tests.ranks.harness import counts, virtual_counts

    some = tuple(prefixes)
    real = [f"{RANKS}::test_over_ranks[{MPI}-{n}-{name}]" for name, n in counts(MPI).items() if name.startswith(some)]
    return real + [
        f"{VIRTUAL_RANKS}::test_over_virtual_ranks[{n}-{name}]"
        for name, n, is_default in virtual_counts()
        if is_default and name.startswith(some)
    ]


if __name__ == "__main__":
    print(*chosen(changed(*sys.argv[1:] or ["HEAD"])), sep="\n")
