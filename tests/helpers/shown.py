"""What the documentation shows: its pages, their prose, their blocks and the commands in these."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.launcher import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted(
        path for path in (ROOT / "docs").rglob("*.md") if not {"generated", "_build", "notebooks"} & set(path.parts)
    ),
]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}\S.*\n?)+", re.MULTILINE)
STARTS = ("mpirun ", "python -m psframe", "psframe ", "bash launch/", "sbatch ")


@dataclass(frozen=True)
class Command:
    """A command line of a page, in words."""

    page: str
    words: tuple[str, ...]

    @property
    def _called(self) -> tuple[str, ...]:
        """Name of a command of psframe and the words behind it; nothing if it calls none."""
        if self.words[0] == "psframe":
            return self.words[1:]
        at = self.words.index("-m") + 1 if "-m" in self.words else 0
        name = self.words[at]
        return (name.removeprefix("psframe."), *self.words[at + 1 :]) if name.startswith("psframe.") else ()

    @property
    def module(self) -> str:
        """Module of psframe that it runs, as ``train`` or ``bench step``; "" if it runs none."""
        return " ".join(self._called[: 2 if self._called[:1] == ("bench",) else 1])

    @property
    def arguments(self) -> list[str]:
        """Words behind the module's name, without the ``-n N`` that only ``psframe`` itself takes."""
        rest = list(self._called[len(self.module.split()) :])
        is_own = self.words[0] == "psframe" and self.module not in ("run", "quickstart")
        return rest[2:] if is_own and rest[:1] == ["-n"] else rest


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands of a page, without comments; lines that go on behind a backslash are one."""
    text = page.read_text()
    blocks = [body for language, body in FENCE.findall(text) if language in ("", "bash", "sh", "console")]
    if page.name == "README.md":
        blocks += INDENTED.findall(FENCE.sub("", text))
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if line.strip().startswith(STARTS):
                yield Command(page.relative_to(ROOT).as_posix(), tuple(shlex.split(line.strip(), comments=True)))


def configs() -> list[tuple[Path, dict[str, Any]]]:
    """Return the configs of all pages; a part of a config is completed."""
    # predict.md shows a profile of a machine, which tests/unit/predict read
    shown = [(page, FENCE.findall(page.read_text())) for page in PAGES if page.name != "predict.md"]
    bodies = [(page, body) for page, blocks in shown for language, body in blocks if language == "yaml"]
    return [(page, {"model": "lenet", "dataset": "synthetic", **yaml.safe_load(body)}) for page, body in bodies]


def prose(page: Path) -> str:
    """Return the text of a page without blocks, links' targets and code."""
    text = INDENTED.sub("", FENCE.sub("", page.read_text()))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page, cells of tables and items of lists by themselves."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|\|", prose(page)):
        yield from re.split(r"(?<=[.!?;:])\s+(?=[A-Z(\[]|psframe\b|code\b)", " ".join(block.split()))
