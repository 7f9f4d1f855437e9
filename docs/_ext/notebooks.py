"""Notebooks of the documentation: run them, keep what they print, and show them as pages.

``python docs/_ext/notebooks.py [NOTEBOOK ...]`` runs each in a folder of its own and writes its outputs into it. Only
plain Python and lines ``!command`` are understood, so that no Jupyter is needed to run or to show them.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
MARK = "\x1e"  # between the outputs of two cells


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def program(notebook: dict[str, Any]) -> str:
    """Return a Python program that does what the code cells do, with MARK behind the output of each."""
    parts = ["import subprocess as _subprocess, sys as _sys"]
    for cell in code(notebook):
        source = re.sub(r"^!(.*)$", lambda m: f"_shell({m[1]!r})", "".join(cell["source"]), flags=re.MULTILINE)
        parts += [source, f"print({MARK!r}, end='', flush=True)"]
    parts.insert(
        1,
        "def _shell(command):\n"
        "    _sys.stdout.flush()\n"
        "    ended = _subprocess.run(command, shell=True, capture_output=True, text=True)\n"
        "    print(ended.stdout, end='', flush=True)\n"
        "    if ended.returncode:\n"
        "        _sys.exit(f'{command}: {ended.stderr}')",
    )
    return "\n".join(parts)


def run(path: Path, folder: Path) -> list[str]:
    """Run a notebook in ``folder``; return what each code cell prints. Raises RuntimeError where one fails."""
    ended = subprocess.run([sys.executable, "-c", program(read(path))], cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{path.name} must run, got {ended.stderr}")
    return ended.stdout.split(MARK)[:-1]


def keep(path: Path) -> None:
    """Run a notebook, and write what it prints into it."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = iter(run(path, Path(folder)))
    notebook = read(path)
    for number, cell in enumerate(code(notebook)):
        text = next(outputs)
        stream = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
        cell["outputs"], cell["execution_count"] = [stream] if text else [], number + 1
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def page(path: Path) -> Iterator[str]:
    """Yield a notebook as Markdown, with the outputs that it keeps."""
    for cell in read(path)["cells"]:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            yield f"{source}\n"
            continue
        for is_command, lines in groupby(source.splitlines(), lambda line: line.startswith("!")):
            language = "sh" if is_command else "python"
            body = "\n".join(line.removeprefix("!") if is_command else line for line in lines).strip("\n")
            yield f"```{language}\n{body}\n```\n"
        text = "".join("".join(output["text"]) for output in cell["outputs"]).rstrip()
        if text:
            yield f"```text\n{text}\n```\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb"))):
        keep(Path(name))
