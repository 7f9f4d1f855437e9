"""Reader of the command's paths (:func:`read`): unreadable input becomes a notice, and the rest is shown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psframe.config import strict_yaml, untrusted
from psframe.errors import UserError, reason
from psframe.record.folder import chosen_file
from psframe.report.values import list_of, number, table_of, text

DEPTH = 4  # levels of folders that are searched below a given one
MAX_BYTES = 256 << 20  # of a file
MAX_PATH = 1000  # characters of a path in a file
MAX_LEAVES = 500  # of a config
BENCHES = ("threads", "forward", "peers", "predict", "torch", "torch_record")

Json = dict[str, Any]


@dataclass
class Run:
    """A run directory, without its damaged parts.

    Attributes
    ----------
    config : dict of str to str
        Its leaves by path, as ``train.epochs``; empty if absent.
    records : list of dict
        Of its epochs, each once, ascending.
    usage : list of dict
    traced : int
        Bytes of its trace.json; 0 if absent.
    folder : str
        Its path: relative to the given path, or as given if there were several.
    label, group, what : str
        Its unique label, the label that repeated runs of the same share, and the latter without its ranks.
    """

    path: Path
    config: dict[str, str]
    records: list[Json]
    usage: list[Json]
    traced: int
    folder: str = ""
    label: str = ""
    group: str = ""
    what: str = ""

    @property
    def last(self) -> Json:
        return self.records[-1] if self.records else {}

    def get(self, key: str) -> str:
        """Return a label of the records as text."""
        return text(self.last.get(key))


@dataclass
class Found:
    """All input that was found."""

    runs: list[Run] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)  #: folders of ``bench collectives``
    benches: dict[str, list[tuple[Path, Json]]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)
    of_bench: set[Path] = field(default_factory=set)  #: folders of runs that a bench shows


def read(paths: Sequence[str]) -> Found:
    """Return the input at the paths; never raises for a file's contents."""
    inputs = Found()
    for name in paths:
        n_before = len(inputs.runs)
        try:
            _look(Path(name), inputs)
            for new_run in inputs.runs[n_before:]:
                new_run.folder = _below(new_run.path, Path(name) if len(paths) == 1 else None)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            inputs.notices.append(f"a path must be readable, got {text(name)!r} ({reason(error)}); check it")
    return inputs


def _below(path: Path, given: Path | None) -> str:
    """Return a run's folder relative to the only given path; unchanged if there were several."""
    if given is None:
        return text(str(path), MAX_PATH)
    if path == given or not path.is_relative_to(given):  # the run itself was given, or a file in it
        return text(path.resolve().name, MAX_PATH)
    return text(str(path.relative_to(given)), MAX_PATH)


def _look(path: Path, found: Found) -> None:
    if path.is_file():
        path = path.resolve() if path.is_symlink() else path  # the user gave this link
        if path.name in ("collectives.csv", "collectives.h5"):
            _keep(path.parent, found.tables, found)
        elif path.name in ("config.yaml", "metrics.jsonl"):
            _keep_run(path.parent, found)
        else:
            _bench(path, found, asked=True)
        return
    if not path.is_dir():
        found.notices.append(f"a path must name what is there, got {text(str(path))!r}, which is not; check it")
        return
    before = len(found.seen)
    _folder(path, found, DEPTH)
    if len(found.seen) == before:
        found.notices.append(
            f"a folder must hold runs, bench collectives' tables or benches' JSON, got {text(str(path))!r} with none "
            f"in {DEPTH} levels; check the path"
        )


def _folder(path: Path, found: Found, depth: int) -> None:
    if (path / "config.yaml").exists() or (path / "metrics.jsonl").exists():
        _keep_run(path, found)
        return
    if (path / "collectives.csv").exists() or (path / "collectives.h5").exists():
        _keep(path, found.tables, found)
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        found.notices.append(f"a folder must be readable, got {text(str(path))!r} ({reason(error)}); it is left out")
        return
    for entry in sorted(entries, key=lambda path: path.is_dir()):  # files first: a bench names its own runs
        if entry.is_symlink():
            found.notices.append(f"a link is not followed, got {_named(entry)}; give what it leads to, if it is yours")
        elif entry.is_dir() and depth and entry.resolve() not in found.of_bench:
            _folder(entry, found, depth - 1)
        elif entry.suffix == ".json" and entry.is_file():
            _bench(entry, found, asked=False)


def _keep(path: Path, kept: list[Path], found: Found) -> None:
    if path.resolve() not in found.seen:
        found.seen.add(path.resolve())
        kept.append(path)


def _keep_run(path: Path, found: Found) -> None:
    if path.resolve() not in found.seen:
        found.seen.add(path.resolve())
        found.runs.append(run(path, found.notices))


def run(path: Path, notices: list[str]) -> Run:
    """Return the contents of a run directory."""
    records: dict[int, Json] = {}
    for record in rows(path / "metrics.jsonl", notices):
        epoch = record.get("epoch")
        if isinstance(epoch, int) and number(epoch, 0) is not None:
            records[int(epoch)] = record
        else:
            notices.append(f"{_named(path / 'metrics.jsonl')}: a line without the number of its epoch is left out")
    if not records:
        notices.append(f"{_named(path)} has no epoch that was finished")
    usage = list(rows(path / "usage.jsonl", notices)) if (path / "usage.jsonl").exists() else []
    trace = path / "trace.json"
    traced = trace.stat().st_size if trace.is_file() and not trace.is_symlink() else 0
    if traced and not _ends(trace, b"]}\n"):
        notices.append(f"{_named(trace)} was cut short: it opens when the run is continued, or not at all")
    return Run(path, _config(path, notices), [records[epoch] for epoch in sorted(records)], usage, traced)


def rows(path: Path, notices: list[str]) -> Iterator[Json]:
    """Yield the objects of a file of JSON lines; damaged lines are left out and counted."""
    content = contents(path, notices)
    damaged = 0
    lines = content.split("\n")
    for line in lines:
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            row = ""
        if isinstance(row, dict):
            yield row
        elif row is not None:
            damaged += 1
    if damaged:
        cut = damaged == 1 and bool(lines[-1].strip())
        what = "the last line was cut short and is" if cut else f"{damaged} damaged line(s) are"
        notices.append(f"{_named(path)}: {what} left out")


def contents(path: Path, notices: list[str]) -> str:
    """Return a file's text; "" and a notice if it cannot be read."""
    try:
        with chosen_file(path) as file:
            return untrusted.all_of(file, MAX_BYTES, path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        notices.append(f"{_named(path)} cannot be read ({reason(error)})")
        return ""


def _config(path: Path, notices: list[str]) -> dict[str, str]:
    content = contents(path / "config.yaml", notices)
    try:
        config = strict_yaml.load(content, "config.yaml") if content else {}
    except UserError:
        config = None
    if not isinstance(config, dict):
        notices.append(f"{_named(path / 'config.yaml')} is damaged: what depends on it is left out")
        return {}
    leaves: dict[str, str] = {}
    _flatten(config, "", leaves, 6)
    return leaves


def _flatten(of: dict[Any, Any], prefix: str, leaves: dict[str, str], depth: int) -> None:
    for key, value in of.items():
        if len(leaves) >= MAX_LEAVES:
            return
        if isinstance(value, dict) and value and depth:
            _flatten(value, f"{prefix}{text(key, 60)}.", leaves, depth - 1)
        else:
            leaves[f"{prefix}{text(key, 60)}"] = "null" if value is None else text(value)


def _bench(path: Path, found: Found, asked: bool) -> None:
    content = contents(path, found.notices)
    try:
        bench = table_of(json.loads(content) if content else None)
    except (ValueError, RecursionError):
        if asked and content:
            found.notices.append(f"a JSON file must be whole, got {_named(path)}, which is not; it is left out")
            return
        bench = {}
    kind = bench.get("bench")
    if kind in BENCHES if isinstance(kind, str) else False:
        if path.resolve() not in found.seen:
            found.seen.add(path.resolve())
            found.benches.setdefault(str(kind), []).append((path, dict(bench)))
            found.of_bench |= {(path.parent / where).resolve() for where in runs_of(bench)}
    elif asked:
        found.notices.append(
            f"a JSON file must be one of a bench, with the key bench ({', '.join(BENCHES)}), got {_named(path)}, "
            "which is none; it is left out"
        )


def runs_of(bench: Any) -> Iterator[str]:
    """Yield the run directories that ``bench threads`` names."""
    for figures in table_of(bench.get("models")).values():
        yield from filter(None, map(run_of, list_of(table_of(figures).get("rows"))))


def run_of(row: Mapping[str, Any]) -> str:
    """Return the run directory that a row of ``bench threads`` names, relative to its folder; "" if it leads out."""
    where = row.get("run")
    if not isinstance(where, str) or "\0" in where or len(where) >= MAX_PATH:
        return ""
    leads_out = Path(where).is_absolute() or ".." in Path(where).parts
    return "" if leads_out else where.encode("utf-8", "replace").decode()


def _ends(path: Path, end: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-min(len(end), path.stat().st_size), 2)
            return file.read() == end
    except OSError:
        return False


def _named(path: Path) -> str:
    return text(str(path), 200)
