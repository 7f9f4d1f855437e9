"""What lies in a run's folder, and what reports, comparisons and benches read."""

import json
from pathlib import Path

from psframe.compare import folder as compared
from psframe.memory import topology
from psframe.record import inputs as of_run
from psframe.record import metrics, run_dir, trace
from psframe.report.make import report
from tests.fuzz.base import Make, Prepared, told
from tests.helpers import machine_trees as trees
from tests.helpers import report_files
from tests.helpers.checkpoints import Ten
from tests.helpers.report_page import sound


def in_report(place: str) -> Make:
    """Return the target in which a file of a run, or of a bench, is the input, and a page is made of it."""

    def make(folder: Path) -> Prepared:
        report_files.run(folder / "run")
        report_files.collectives(folder / "table", environments=((0, 0),))
        (folder / "table" / "bench.json").write_text(json.dumps(report_files.threads()))
        file = folder / place
        seeds = [file.read_bytes()]
        if place.endswith("bench.json"):
            seeds += [json.dumps(of()).encode() for of in (report_files.forward, report_files.peers)]

        def read(data: bytes) -> None:
            file.write_bytes(data)
            with told():
                page, _ = report([str(file.parent)])
                page.encode()
                sound(page)

        return Prepared(seeds, read)

    return make


def continued(place: str) -> Make:
    """Return the target in which a run is continued, one file of which is the input."""

    def make(folder: Path) -> Prepared:
        run = report_files.run(folder / "runs" / "run")
        (run / "checkpoints").mkdir()
        resolved = {"name": "fashion", "record": {"dir": str(folder / "runs")}, "train": {"epochs": 9}}
        resolved |= {"optimizer": {"lr": 0.1}, "model": {"name": "lenet"}, "sync": {"mode": "async_ps"}}
        resolved |= {"checkpoint": {"resume": "auto"}}
        sound_config, file = (run / "config.yaml").read_bytes(), run / place

        def read(data: bytes) -> None:
            (run / "config.yaml").write_bytes(sound_config)
            (run / "metrics.jsonl").unlink(missing_ok=True)
            file.write_bytes(data)
            with told():
                run_dir.open_run({**resolved, "checkpoint": {"resume": str(run)}}, Ten()).lock.close()
            file.write_bytes(data)
            run_dir._newest_unfinished(run.parent, "fashion", 9, [])
            file.write_bytes(data)
            metrics.cut_back(run, 2)
            metrics.last_epoch(run)
            trace._begun(run)

        return Prepared([file.read_bytes()], read)

    return make


def grid(folder: Path) -> Prepared:
    """The input is what a comparison was begun with, and a config of one of its runs."""
    run = report_files.run(folder / "runs" / "001" / "run")
    config = b"train: {epochs: 3}"

    def read(data: bytes) -> None:
        (folder / "grid.json").write_bytes(data)
        compared._grid_of(folder)
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_bytes(data)
        (run / "metrics.jsonl").write_bytes(data)
        compared.finished(run.parent)
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_bytes(config)
        (run / "metrics.jsonl").write_bytes(data)
        compared.finished(run.parent)

    return Prepared([b'{"runs": [], "repeat": 1, "set": []}', config, (run / "metrics.jsonl").read_bytes()], read)


def sysfs(folder: Path) -> Prepared:
    """The input's first byte says which file of a machine's /sys and /proc holds the rest."""
    root = trees.knl(folder, 2, n_cores=4, threads=2, hmat=True)
    trees.put(root, "proc/self/cgroup", "0::/a/b")
    places = sorted(path for path in root.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in places]

    def read(data: bytes) -> None:
        at = data[0] % len(places) if data else 0
        places[at].write_bytes(data[1:])
        assert topology.read(root).nodes
        places[at].write_bytes(contents[at])

    return Prepared([bytes([i]) + content for i, content in enumerate(contents[:256])], read)


def inputs(folder: Path) -> Prepared:
    """The input describes a run's samples."""
    good = of_run.Inputs([3, 8, 9], "uint8", 10, [7, 7], [0.5, 1.0, 2.0], [1.0, 2.0, 3.0])
    good.write(folder)
    seed = (folder / of_run.FILE).read_bytes()

    def read(data: bytes) -> None:
        (folder / of_run.FILE).write_bytes(data)
        with told():
            assert of_run.read(folder).input_shape

    return Prepared([seed, seed.replace(b"[7, 7]", b"null"), seed.replace(b"0.5", b"NaN")], read)


TARGETS = {
    "inputs": inputs,
    "report_metrics": in_report("run/metrics.jsonl"),
    "report_usage": in_report("run/usage.jsonl"),
    "report_config": in_report("run/config.yaml"),
    "report_table": in_report("table/collectives.csv"),
    "report_bench": in_report("table/bench.json"),
    "continued_config": continued("config.yaml"),
    "continued_metrics": continued("metrics.jsonl"),
    "continued_trace": continued("trace.json"),
    "compare": grid,
    "sysfs": sysfs,
}
