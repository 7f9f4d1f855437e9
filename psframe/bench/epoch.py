"""``mpirun -n N python -m psframe.bench epoch CONFIG``: seconds an epoch, in turn with PyTorch's DDP over gloo.

Both train the network of a config on the same batches, prepared by the same code, at the same learning rates, each from
initial parameters of its own; every rank is a worker of DDP, so the config must have no dedicated server.
"""

import socket
from argparse import Namespace
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import assemble, engine, plan
from psframe.bench.stats import spread, write
from psframe.cluster import Cluster
from psframe.command import helped
from psframe.engine import Run
from psframe.errors import UserError
from psframe.parser import Parser
from psframe.record.view import say

USAGE = "mpirun -n N python -m psframe.bench epoch CONFIG [key.path=value ...] [--against ddp] [--json FILE]"


def parser() -> Parser:
    made = Parser(USAGE, "How long an epoch takes.")
    made.add_argument("config", help="a YAML file; checkpoints and records are not written")
    made.add_argument("overrides", nargs="*", help="key.path=value")
    made.add_argument("--against", choices=("ddp", "none"), default="ddp", help="(default: ddp)")
    made.add_argument("--format", choices=("channels_last", "contiguous"), default="channels_last", help="of PyTorch")
    made.add_argument("--json", help="write the figures to this file")
    return made


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    made = parser()
    if helped(cluster, made, argv):
        return 0
    arguments = Namespace(**cluster.agree(lambda: vars(made.parse_intermixed_args(list(argv)))))
    judged = plan.make(cluster, arguments.config, arguments.overrides)
    run = assemble.provided(cluster, judged)
    assemble.begin(run, quiet=True)
    cluster.agree(lambda: _judge(run, arguments.against))
    rivals: dict[str, Callable[[], Any]] = {"psframe": lambda: engine.train_epoch(run)}
    peer = cluster.agree_everywhere(lambda: DDP(run, arguments.format)) if arguments.against == "ddp" else None
    if peer:
        rivals["ddp"] = peer.train_epoch
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(run.config.train.epochs):
        for name, train in rivals.items():
            cluster.barrier()
            began = perf_counter()
            train()
            taken[name].append(cluster.comm.allreduce(perf_counter() - began, MPI.MAX))
        run.epoch += 1
    report = {**run.labels, "epoch_s": {name: spread(seconds) for name, seconds in taken.items()}, "taken": taken}
    report["accuracy"] = {"psframe": cluster.comm.allreduce(engine.evaluate(run)[0])[1] / run.facts.n_test}
    if peer:
        report["accuracy"]["ddp"] = peer.evaluate()
        report["ratio"] = spread([a / b for a, b in zip(taken["ddp"], taken["psframe"], strict=True)])
        peer.close()
    run.sync.close()
    if cluster.rank == 0:
        say(describe(report))
    cluster.agree(lambda: write(arguments.json, report))
    return 0


def _judge(run: Run, against: str) -> None:
    if run.team.server == "dedicated" and against == "ddp":
        raise UserError(
            "every rank must be a worker, as in DDP, got a dedicated server; give sync.server=colocated, "
            "sync.mode=allreduce, or --against none"
        )


class DDP:
    """The same network in PyTorch, on one thread a rank, with DistributedDataParallel over gloo."""

    def __init__(self, run: Run, memory_format: str):
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise UserError(
                "--against ddp needs PyTorch, got none; pip install torch==2.13.0, or give --against none"
            ) from None
        from psframe.bench.peers import torch_module

        self.torch, self.dist, self.run = torch, dist, run
        torch.set_num_threads(1)
        torch.manual_seed(run.config.train.seed)
        comm, address = run.cluster.comm, None
        if comm.rank == 0:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = probe.getsockname()[1]
        port = comm.bcast(address)
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size)
        module = torch_module(run.network.layers, run.facts.input_shape, memory_format)
        self.module = torch.nn.parallel.DistributedDataParallel(module) if comm.size > 1 else module
        keys = run.updater.optimizer
        self.optimizer = torch.optim.SGD(
            self.module.parameters(), keys.lr, getattr(keys, "momentum", 0.0), weight_decay=0.0
        )

    def train_epoch(self) -> None:
        """Train one epoch, on the batches of psframe's."""
        run, torch = self.run, self.torch
        order, worker = run.sampler.permutation(run.epoch), run.team.worker
        assert worker is not None
        for step in range(run.sampler.n_steps):
            x, labels = run.batches.load("train", order[run.sampler.share(step, worker)], run.epoch)
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(self.module(self._images(x)), torch.from_numpy(labels))
            loss.backward()
            self.optimizer.step()

    def _images(self, x: np.ndarray) -> Any:
        """Return channels-last memory as PyTorch sees it, without a copy."""
        return self.torch.from_numpy(x).permute(0, 3, 1, 2)

    def evaluate(self) -> float:
        """Return the accuracy on the test set; every rank has the same."""
        run, correct = self.run, 0
        with self.torch.no_grad():
            for lo in range(0, run.facts.n_test, run.sampler.max_batch):
                samples = np.arange(lo, min(lo + run.sampler.max_batch, run.facts.n_test))
                x, labels = run.batches.load("test", samples)
                correct += int((self.module(self._images(x)).argmax(1).numpy() == labels).sum())
        return correct / run.facts.n_test

    def close(self) -> None:
        self.dist.destroy_process_group()


def describe(report: dict[str, Any]) -> str:
    """Return what was found as text."""
    lines = [
        f"{report['model']} on {report['dataset']}, {report['n_ranks']} ranks x batch {report['batch_size']}, "
        f"{report['sync_mode']} over {report['collective']}"
    ]
    for name, seconds in report["epoch_s"].items():
        spread_s = f"{seconds['median']:.2f} s an epoch ({seconds['low']:.2f} to {seconds['high']:.2f})"
        lines.append(f"  {name:8} {spread_s}, accuracy {report['accuracy'][name]:.2%}")
    if "ratio" in report:
        ratio = report["ratio"]
        lines.append(f"  ddp / psframe: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
    return "\n".join(lines)
