"""Drawings of the documentation, as SVG that follows the reader's light or dark theme.

``python docs/_ext/drawings.py`` writes all of them to ``docs/_static/drawings``. The timelines are of runs of three
ranks that it starts, the floors are those of today's imports.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import ceil, floor, log2
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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
    paths = {"psframe": ROOT / "psframe", "models": ROOT / "models", "datasets": ROOT / "datasets"}
    needs: dict[str, set[str]] = {}
    for top, folder in paths.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            own = parts[0] if top == "psframe" else top
            if own.startswith("__") or "template" in parts:
                continue
            needs.setdefault(own, set())
            for node in ast.walk(ast.parse(path.read_text())):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module == "psframe":
                    modules = [f"psframe.{alias.name}" for alias in node.names]
                needs[own] |= {module.split(".")[1] for module in modules if module.startswith("psframe.")}
    return {name: {other for other in others if other in needs and other != name} for name, others in needs.items()}


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
    body = [text(10, 20, "Knights Landing, flat mode, SNC-4", "")]
    for quarter in range(4):
        x = 10 + quarter * 140
        body += [box(x, 34, 128, 40), text(x + 64, 58, f"node {quarter}: 16 cores", "small", "middle")]
        body += [box(x, 82, 128, 30, "grey"), text(x + 64, 101, "DDR: activations, data", "small", "middle")]
        body += [box(x, 120, 128, 30, "orange"), text(x + 64, 139, f"node {quarter + 4}: MCDRAM", "small", "middle")]
        body += [
            text(x + 64, 168, "parameters, gradients", "small", "middle"),
            text(x + 64, 184, "exchange", "small", "middle"),
        ]
    body += [text(10, 212, "placement: {parameters: hbw, gradients: hbw, exchange: hbw}", "mono small")]
    return svg(580, 224, "Placement on a Knights Landing", body)


def xeon_max() -> str:
    """Return a Xeon Max with two packages in flat mode, and a placement of roles."""
    body = [text(10, 20, "Xeon Max, two packages, flat mode", "")]
    for package in range(2):
        x = 10 + package * 285
        body += [box(x, 34, 270, 36), text(x + 135, 57, f"node {package}: 56 cores", "small", "middle")]
        body += [box(x, 78, 270, 30, "grey"), text(x + 135, 97, "DDR5: data, optimizer", "small", "middle")]
        body += [
            box(x, 116, 270, 30, "orange"),
            text(x + 135, 135, f"node {package + 2}: HBM2e, 64 GB", "small", "middle"),
        ]
        body += [text(x + 135, 164, "parameters, gradients, activations, exchange", "small", "middle")]
    keys = "placement: {parameters: hbw, gradients: hbw, activations: hbw, exchange: hbw, optimizer: ddr}"
    return svg(580, 206, "Placement on a Xeon Max", [*body, text(10, 192, keys, "mono small")])


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
