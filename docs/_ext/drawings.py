"""Drawings of the documentation, as SVG that follows the reader's light or dark theme.

``python docs/_ext/drawings.py`` writes all of them to ``docs/_static/drawings``. The timelines are of runs of three
ranks that it starts, the floors are those of today's imports.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import ceil, floor, log2
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.modules import MODULES, imports  # noqa: E402

OUT = ROOT / "docs" / "_static" / "drawings"
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px } .mono { font-family: monospace }
.line { stroke: #57606a; fill: none } .box { fill: #f6f8fa; stroke: #8c959f }
.blue { fill: #54aeff } .orange { fill: #fb8f44 } .green { fill: #4ac26b }
path.curve { fill: none; stroke-width: 2 } .faint { opacity: 0.25 }
path.blue { stroke: #0969da } path.orange { stroke: #fb8f44 }
path.grey { stroke: #8c959f } path.green { stroke: #2da44e }
.grey { fill: #afb8c1 } .pale { fill: #d8dee4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .line { stroke: #8b949e } .box { fill: #161b22; stroke: #6e7681 } .pale { fill: #30363d }
}
</style>"""
#: mode, name in the drawing; each with a step that a reader can tell apart
MODES = {
    "sync_ps, dedicated server": "sync_ps",
    "allreduce": "allreduce",
    "async_ps": "{mode: async_ps}",
    "easgd, every 4 steps": "{mode: easgd, period: 4}",
    "local_sgd, every 4 steps": "{mode: local_sgd, every: 4}",
    "hogwild": "hogwild",
}
CURVES = {"psframe": "blue", "mpi4py": "grey", "ddp": "orange", "horovod": "green"}
LABELS = {"psframe": "psframe", "mpi4py": "mpi4py by hand", "ddp": "PyTorch DDP", "horovod": "Horovod"}
KINDS = {"data": "grey", "gradients": "blue", "exchange": "orange", "update": "green", "wait": "pale"}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    drawings = {"floors": floors(), "shared-step": shared_step(), "knl": knl(), "xeon-max": xeon_max()}
    drawings["epochs"] = epochs(OUT / "peers.json")
    for name, drawing in (drawings | timelines()).items():
        (OUT / f"{name}.svg").write_text(drawing)


def svg(width: float, height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">'
        f"{STYLE}<title>{title}</title>{''.join(body)}</svg>\n"
    )


def box(x: float, y: float, w: float, h: float, kind: str = "box") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" rx="3" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    head = 4 if to_y > y else -4
    return f'<path class="line" d="M{x:.1f} {y:.1f} L{to_x:.1f} {to_y:.1f} m-4 {-head} l4 {head} l4 {-head}"/>'


def floors() -> str:
    """Return the packages of psframe by floors: each imports those below it alone."""
    needs = _needs()
    floor: dict[str, int] = {}

    def place(name: str) -> int:
        if name not in floor:
            floor[name] = 1 + max((place(other) for other in needs[name]), default=-1)
        return floor[name]

    top = max(map(place, needs))
    body, width = [], 640
    for number in range(top, -1, -1):
        names, y = sorted(name for name in needs if floor[name] == number), 10 + (top - number) * 44
        w = (width - 20) / len(names)
        for place_in_row, name in enumerate(names):
            body += [
                box(10 + place_in_row * w, y, w - 8, 34),
                text(10 + place_in_row * w + (w - 8) / 2, y + 22, name, "mono", "middle"),
            ]
    return svg(width, 20 + (top + 1) * 44, "Packages of psframe: each imports only those on floors below it", body)


def _needs() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    needs: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        package = _package(module)
        if package and "template" not in path.parts:
            needs.setdefault(package, set()).update({*map(_package, imports(path))} - {"", package})
    return needs


def _package(module: str) -> str:
    """Return the package or module of psframe that a module lies in, "" for psframe itself and its command."""
    _, _, inner = module.partition(".")
    return "" if inner.startswith("__") else inner.partition(".")[0]


def shared_step() -> str:
    """Return a step over ``shared``: four ranks, their gradients in slots, and three segments of the parameters."""
    colours, body = ("blue", "orange", "green"), []
    for rank in range(4):
        y = 40 + rank * 34
        body += [text(8, y + 16, f"slot of rank {rank}", "small")]
        body += [box(110 + part * 90, y, 84, 24, colours[part]) for part in range(3)]
    for part in range(3):
        x = 152 + part * 90
        body += [arrow(x, 178, x, 208), text(x + 8, 196, f"rank {part} sums", "small")]
        body += [box(110 + part * 90, 214, 84, 24, colours[part])]
    body += [
        text(8, 230, "new parameters", "small"),
        text(110, 28, "1. each rank computes its gradients in its slot", "small"),
    ]
    body += [text(390, 120, "2. each reducer sums", "small"), text(390, 136, "its segment over all slots,", "small")]
    body += [text(390, 152, "in rank order", "small"), text(390, 222, "3. and updates it in the same", "small")]
    body += [text(390, 238, "pass, in a second copy", "small"), box(110, 262, 264, 24, "grey")]
    body += [text(242, 279, "4. one store makes the copy current", "small", "middle")]
    return svg(560, 300, "A step over the collective shared: nothing is sent", body)


def epochs(path: Path) -> str:
    """Return seconds of an epoch against ranks, of psframe and of others, from what ``bench peers --json`` wrote."""
    rows = json.loads(path.read_text())["rows"]
    ranks = [row["n_ranks"] for row in rows]
    names = [name for name in ("psframe", "mpi4py", "ddp", "horovod") if all(name in row["epoch_s"] for row in rows)]
    seconds = {name: [row["epoch_s"][name]["median"] for row in rows] for name in names}
    top = log2(1.3 * max(max(values) for values in seconds.values()))
    low = log2(0.8 * min(min(values) for values in seconds.values()))
    xs = [90 + 430 * number / (len(ranks) - 1) for number in range(len(ranks))]
    body = [text(10, 18, "seconds of an epoch (LeNet, Fashion-MNIST, two cores, global batch 128)", "")]
    for tick in range(ceil(low), floor(top) + 1):
        y = 270 - 235 * (tick - low) / (top - low)
        body += [f'<path class="line faint" d="M80 {y:.1f} H540"/>', text(72, y + 4, f"{2**tick:g}", "small", "end")]
    body += [text(x, 290, f"{n} ranks", "small", "middle") for x, n in zip(xs, ranks, strict=True)]
    for name, values in seconds.items():
        ys = [270 - 235 * (log2(value) - low) / (top - low) for value in values]
        points = " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
        body.append(f'<path class="curve {CURVES[name]}" d="M{points}"/>')
        for x, y, value in zip(xs, ys, values, strict=True):
            body.append(f'<circle class="{CURVES[name]}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
            body.append(text(x, y - 8, f"{value:.1f}", "small", "middle"))
        body.append(text(xs[-1] + 14, ys[-1] + 4, LABELS[name], "small"))
    return svg(680, 300, "Seconds of an epoch against ranks", body)


def knl() -> str:
    """Return a Knights Landing in flat mode with SNC-4, and a placement of roles."""
    parts = [(f"node {n}: 16 cores", "DDR: activations, data", f"node {n + 4}: MCDRAM") for n in range(4)]
    keys = "{parameters: hbw, gradients: hbw, exchange: hbw}"
    return _machine("Knights Landing, flat mode, SNC-4", parts, ("parameters, gradients", "exchange"), keys)


def xeon_max() -> str:
    """Return a Xeon Max with two packages in flat mode, and a placement of roles."""
    parts = [(f"node {n}: 56 cores", "DDR5: data, optimizer", f"node {n + 2}: HBM2e, 64 GB") for n in range(2)]
    keys = "{parameters: hbw, gradients: hbw, activations: hbw, exchange: hbw, optimizer: ddr}"
    return _machine(
        "Xeon Max, two packages, flat mode", parts, ("parameters, gradients,", "activations, exchange"), keys
    )


def _machine(name: str, parts: Sequence[tuple[str, str, str]], fast: Sequence[str], keys: str) -> str:
    """Return parts of a machine (cores, ordinary memory, fast memory), and the roles in fast memory."""
    body, width = [text(10, 20, name, "")], 572 / len(parts)
    for number, part in enumerate(parts):
        x, middle = 10 + number * width, 10 + number * width + (width - 12) / 2
        for y, words, kind in zip((34, 76, 118), part, ("box", "grey", "orange"), strict=True):
            body += [box(x, y, width - 12, 34, kind), text(middle, y + 22, words, "small", "middle")]
        body += [text(middle, 170 + 16 * line, words, "small", "middle") for line, words in enumerate(fast)]
    return svg(580, 224, f"Placement on a machine: {name}", [*body, text(10, 212, f"placement: {keys}", "mono small")])


def timelines() -> dict[str, str]:
    """Return the timeline of some steps of each mode, from traces of runs."""
    with tempfile.TemporaryDirectory() as folder:
        return {f"timeline-{_stem(spec)}": _timeline(name, _trace(spec, folder)) for name, spec in MODES.items()}


def _stem(spec: str) -> str:
    return spec.strip("{}").removeprefix("mode: ").partition(",")[0]


def _trace(spec: str, folder: str) -> list[dict[str, Any]]:
    """Train in a mode on 3 ranks; return the spans of its trace."""
    name = _stem(spec)
    keys = [
        f"sync={spec}",
        f"name={name}",
        f"record.dir={folder}",
        "record.trace=30",
        "train.epochs=2",
        "train.batch_size=32",
    ]
    words = ["-m", "psframe", "train", "-n", "3", "configs/quickstart.yaml", *keys, "optimizer.momentum=0", "--quiet"]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    (path,) = Path(folder).glob(f"{name}-*/trace.json")
    spans = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X" and e["name"] in KINDS]
    return sorted(spans, key=lambda span: float(span["ts"]))


def _timeline(name: str, spans: list[dict[str, Any]]) -> str:
    """Return a drawing of about six steps of a worker, behind the first ten."""
    steps = [span for span in spans if span["name"] == "gradients" and span["pid"] == 2]
    begin, end = steps[10]["ts"], steps[16]["ts"]
    width, left = 640.0, 60.0
    scale, body = (width - left - 10) / (end - begin), []
    for rank in range(3):
        y = 30 + rank * 26
        body.append(text(6, y + 14, f"rank {rank}", "small"))
        for span in spans:
            if span["pid"] == rank and span["ts"] < end and span["ts"] + span["dur"] > begin:
                x = max(span["ts"], begin)
                w = min(span["ts"] + span["dur"], end) - x
                body.append(box(left + (x - begin) * scale, y, w * scale, 18, KINDS[span["name"]]))
    legend = 60.0
    for kind, colour in KINDS.items():
        body += [box(legend, 116, 12, 12, colour), text(legend + 16, 126, kind, "small")]
        legend += 90
    body += [text(6, 18, f"{name}: {(end - begin) / 1000:.0f} ms", "")]
    return svg(width, 136, f"Timeline of {name}", body)


if __name__ == "__main__":
    main()
