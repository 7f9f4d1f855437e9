"""Files as psframe's commands write them, for the page that is made of them."""

import csv
import json

import h5py

MPI = "Open MPI v5.0.11, ident: 5.0.11"  # a library's name of itself, which may have commas
COLUMNS = "environment containers share_ipc operation method memory n_ranks n_nodes bytes "
COLUMNS += "repetitions median_s low_s high_s mpi"
RECORD = {
    "epoch": 1,
    "epoch_s": 2.0,
    "data_s": 0.1,
    "compute_s": 1.0,
    "exchange_s": 0.4,
    "update_s": 0.1,
    "wait_s": 0.3,
    "samples_per_s": 2000.0,
    "samples_used": 4000,
    "begun_at": 0,
    "bytes_read": 4_000_000,
    "bytes_written": 2_000_000,
    "bytes_sent": 1_000_000,
    "bytes_moved": 7_000_000,
    "staleness": {"0": 30, "2": 12},
    "loss": 0.5,
    "test_loss": 0.6,
    "accuracy": 0.8,
    "metrics": {"top_2": 0.9, "ece": 0.04, "recall": [0.5, None, 1.0], "confusion": [[2, 1, 1], [0, 0, 0], [0, 0, 1]]},
    "pages": {"parameters": {"0": 400, "4": 22, "untouched": 3}, "data": {"1": 900}},
    "placed": {"parameters": 0.95},
    "model": "lenet",
    "dataset": "mnist_5k",
    "placement": {"parameters": "hbw", "data": "default"},
    "sync_mode": "async_ps",
    "server": None,
    "collective": "shared",
    "store": "shared",
    "n_ranks": 4,
    "n_workers": 4,
    "batch_size": 16,
    "global_batch": 64,
}
CONFIG = """\
name: {name}
model: {{name: lenet}}
optimizer: {{lr: {lr}}}
sync: {{mode: async_ps}}
versions: {{psframe: 0.1.0}}
"""


def spread(middle):
    return {"median": middle, "low": 0.9 * middle, "high": 1.2 * middle}


def run(path, name="fashion", epochs=3, usage_ranks=2, lr=0.1, **changes):
    """Write a run directory."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(CONFIG.format(name=name, lr=lr))
    records = [{**RECORD, "epoch": n + 1, "loss": 0.5 / (n + 1), **changes} for n in range(epochs)]
    write_lines(path / "metrics.jsonl", records)
    write_lines(path / "usage.jsonl", usage(usage_ranks))
    (path / "trace.json").write_text('{"traceEvents": [\n]}\n')
    return path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def usage(n_ranks):
    return [
        {
            "epoch": 1,
            "rank": rank,
            "t_s": second + rank / 100,
            "cpu_percent": 60 + 20 * (second % 3),
            "rss_bytes": 200_000_000 + second * 1_000_000,
            "threads": 5 + second // 10,
            "sent_bytes_per_s": 1e6 * (second % 5),
            "received_bytes_per_s": 2e6,
        }
        for second in range(30)
        for rank in range(n_ranks)
    ]


def collectives(path, memories=("ddr", "hbw"), environments=((0, 0), (1, 0), (2, 0), (4, 0), (4, 1)), mode=None):
    """Write the table of ``bench collectives``, and beside it what machine it was."""
    path.mkdir(parents=True)
    with h5py.File(path / "collectives.h5", "w") as file:
        file.attrs["topology"] = json.dumps({"cpu": "A many-core CPU", "n_cores": 2, "cluster_mode": mode})
        file.attrs["mpi"], file.attrs["started"] = MPI, "2026-11-22T08:00:00"
    with open(path / "collectives.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS.split())
        for containers, share in environments:
            name = "host" if not containers else f"{containers} container{'s' if containers > 1 else ''}"
            for operation, n_bytes in (("bcast", 1 << 26), ("gather", 1 << 24), ("allreduce", 1 << 26)):
                for method in ("c", "buffer", "object", "shared"):
                    for memory in memories:
                        for n in (4, 16, 32, 64, 68):
                            s = 1e-3 * n * (2 if memory == "ddr" else 1) * (1 + containers)
                            row = [name, containers, share, operation, method, memory, n, 1, n_bytes, 9]
                            writer.writerow([*row, s, 0.9 * s, 1.2 * s, MPI])
    return path


def threads(runs="runs/one"):
    rows = [
        {"kind": kind, "n": n, "epoch_s": spread(40 / n), "speedup": 0.8 * n, "accuracy": 0.4, "run": runs}
        for kind in ("threads", "processes")
        for n in (1, 2, 4, 11)
    ]
    rows.append({"kind": "processes", "n": 16, "failed": "memory must fit, got too little"})
    models = {name: {"global_batch": 16, "n_train": 96, "rows": rows} for name in ("alexnet", "vgg16")}
    return {"bench": "threads", "machine": "A CPU", "cores": 16, "models": models}


def forward():
    rows = [
        {"n_ranks": n, "seconds": spread(2 / n), "samples_per_s": 4000.0 * n, "speedup": n, "efficiency": 1.0}
        for n in (1, 2, 4, 8)
    ]
    return {"bench": "forward", "model": "har_cnn", "batch": 8000, "machine": "A CPU", "cores": 16, "rows": rows}


def peers():
    names = ("psframe", "ddp", "mpi4py")
    rows = [
        {
            "n_ranks": n,
            "batch_size": 64 // n,
            "epoch_s": {name: spread(5.0 + k) for k, name in enumerate(names)},
            "accuracy": dict.fromkeys(names, 0.89),
            "ratio": {name: spread(1.5) for name in names[1:]},
        }
        for n in (2, 4)
    ]
    absent = {"horovod": "it could not be built"}
    return {"bench": "peers", "model": "lenet", "dataset": "fashion_mnist", "rows": rows, "absent": absent}


def predict():
    rows = [
        {"label": name, "n_ranks": n, "nodes": 1 + n // 64, "epoch_s": 90 / n,
         "split": {"compute": 60 / n, "links": 30 / n}, "measured": ["compute"]}
        for n in (2, 64, 4096)
        for name in ("allreduce over shared", "sync_ps over buffer")
    ]  # fmt: skip
    pairs = [
        {"what": f"lenet, {n} ranks", "n_ranks": n, "measured": 1.0 / n, "predicted": 1.1 / n, "of": of}
        for n in (2, 4)
        for of in ("epochs", "Woo et al. 2020")
    ]
    return {"bench": "predict", "model": "lenet", "machine": "A CPU", "rows": rows, "pairs": pairs}


def torch():
    rows = [
        {"ranks": n, "what": what, "against": "gloo", "psframe_ms": spread(1.0), "against_ms": spread(5.0),
         "ratio": spread(5.0)}
        for n in (2, 4)
        for what in ("all_reduce 65,536", "step of lenet")
    ]  # fmt: skip
    return {"bench": "torch", "against": "gloo", "rows": rows}


def torch_record(rank=0):
    rows = [
        {"collective": name, "dtype": dtype, "calls": 10, "bytes": 4000, "waited_s": 0.1 * (rank + 1),
         "longest_wait_s": 0.05}
        for name, dtype in (("all_reduce", "float32"), ("barrier", ""))
    ]  # fmt: skip
    return {
        "bench": "torch_record",
        "group": "0",
        "rank": rank,
        "ranks": [0, 1],
        "collectives": rows,
        "pages": {"0": 5},
    }


def everything(root):
    """Write one of each below ``root``."""
    run(root / "runs" / "one")
    run(root / "runs" / "two", n_ranks=8, samples_per_s=3000.0, samples_used=6000, usage_ranks=9)
    run(root / "runs" / "three", lr=0.2, epoch_s=2.5, samples_per_s=1600.0)
    run(root / "runs" / "four")
    collectives(root / "collectives")
    for made in (threads("runs/four"), forward(), peers(), predict(), torch(), torch_record(0), torch_record(1)):
        (root / f"{made['bench']}-{made.get('rank', 0)}.json").write_text(json.dumps(made))
    return root
