"""Trains inside an mpirun that runs already: on the first ranks of the world, as the command would."""

import json
import shutil
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path

from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.cluster import AgreedError
from psframe.cluster.joining import join
from psframe.record import log
from psframe.train import command, epoch
from psframe.train.assembly import assemble
from psframe.train.callbacks.calls import Calls
from psframe.train.plan import plan
from psframe.virtual.training import trained
from tests.helpers.launcher import go_back
from tests.ranks.harness import all_come, is_virtual

TINY = """\
name: tiny
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [2, 8, 9], classes: 5, samples: 203}
train: {epochs: 2, batch_size: 8, seed: 3}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.001}
record: {steps: true}
"""


def key(parallel):
    """Return the override of a section that says how a network is cut."""
    return "parallel=" + json.dumps(parallel)


@contextmanager
def folder(world):
    """Yield one temporary folder to all ranks, which rank 0 removes behind the last of them.

    A rank that raises waits for nobody: the others may wait for it elsewhere, and the harness must see what it raised.
    """
    path = world.bcast(tempfile.mkdtemp(prefix="psframe-test-") if world.rank == 0 else None)
    try:
        yield Path(path)
        if not is_virtual(world):
            log.begin(world.rank)  # writes nothing there any more
        world.Barrier()
    finally:
        if world.rank == 0:
            shutil.rmtree(path, ignore_errors=sys.exc_info()[0] is not None)  # others may still write there


@contextmanager
def in_each_process(world, context):
    """Enter a context in the process of each rank; virtual ranks have one together."""
    if not is_virtual(world):
        with context:
            yield
        return
    with context if world.rank == 0 else nullcontext():
        world.Barrier()
        yield
        world.Barrier()


def train(world, n_ranks, where, *overrides, config=TINY, expect=0, quiet=True):
    """Train on the first ``n_ranks`` ranks; return (metrics, steps, run directory) of the newest run on every rank."""
    path = where / "config.yaml"
    if world.rank == 0:
        path.write_text(config)
    world.Barrier()
    group = world.Split(0 if world.rank < n_ranks else MPI.UNDEFINED, key=world.rank)
    status = None
    if group != MPI.COMM_NULL:
        keys = [f"record.dir={where / 'runs'}", *overrides]
        status = (_on_virtual if is_virtual(world) else _by_command)(group, path, keys, quiet)
    all_come(world)  # those that train have the cores for themselves: ranks that wait in MPI's calls spin
    statuses = [s for s in world.allgather(status) if s is not None]
    assert set(statuses) == {expect}, statuses  # on every rank, or those that trained not would wait for ever
    if expect:
        return None
    run = max((where / "runs").iterdir(), key=lambda p: (p / "metrics.jsonl").stat().st_mtime_ns)
    read = [[json.loads(line) for line in (run / f).read_text().splitlines()] for f in ("metrics.jsonl", "steps.jsonl")]
    world.Barrier()
    return (*read, run)


def _by_command(group, path, keys, quiet):
    """Train as the command does; return its status."""
    with communicators.freed():  # of which MPICH has 2,048
        status = command.main([str(path), *(["--quiet"] if quiet else []), *keys], group)
    if group != MPI.COMM_NULL:  # it was refused before it joined
        group.Free()
    return status


def _on_virtual(group, path, keys, quiet):
    """Train by the code of the command, without what watches processes; return the same status."""
    try:
        trained(join(group), str(path), keys)
    except AgreedError as error:
        if group.rank == 0:
            print(error, file=sys.stderr)
        return 2
    return 0


def hashes(world, n_ranks, where, *overrides, **kwargs):
    """Return the parameters' hash after each epoch of a run."""
    return [record["params_sha256"] for record in train(world, n_ranks, where, *overrides, **kwargs)[0]]


def begun(world, where, *keys):
    """Return a run that is ready to train."""
    if world.rank == 0:
        (where / "config.yaml").write_text(TINY)
    cluster = join(world)
    judged = plan.make(cluster, str(where / "config.yaml"), [f"record.dir={where / 'runs'}", *keys])
    return assemble.run(cluster, judged, True, Calls())


def one_epoch(run):
    """Train the run's next epoch; the caller looks at it before another one."""
    epoch.train_epoch(run)
    run.progress.epoch, run.sampler.cursor = run.progress.epoch + 1, 0
    run.progress.parts.clear()


def continued(world, where, *overrides):
    """Return the hashes of epochs of a run, and of one that goes on behind its second epoch."""
    whole = hashes(world, world.size, where, *overrides, "name=whole")
    train(world, world.size, where, *overrides, "name=parts")
    run = next((where / "runs").glob("parts-*"))
    if world.rank == 0:
        go_back(run, 2)
    world.Barrier()
    return whole, hashes(world, world.size, where, *overrides, f"checkpoint.resume={run}", "name=parts")
