"""From a plan to the parts of a run, on every rank."""

import json
import shutil
import sys
from threading import Timer
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from threadpoolctl import threadpool_limits

from psframe import __version__, affinity, residency
from psframe.arena import Arena
from psframe.cluster import Cluster
from psframe.collectives.null import Null
from psframe.data import Arrays, Facts, hold, no_memory_for_data
from psframe.engine import Run, durably
from psframe.errors import UserError, reason
from psframe.memory.allocator import Allocator
from psframe.memory.places import SHARED
from psframe.nn.base import Pass
from psframe.nn.network import Network
from psframe.nn.threads import Threads
from psframe.optim import Updater
from psframe.plan import Plan
from psframe.record.run_dir import RunDir, open_run
from psframe.record.view import View, say
from psframe.sampling import Batches, Sampler
from psframe.sync.allreduce import AllReduce

THREAD_FLOPS = 4e8  # of a step, for each thread: with less, waking the threads takes longer than they save
NOTICE_S = 3.0  # of compiling until a user is told what takes so long


def run(cluster: Cluster, plan: Plan, quiet: bool) -> Run:
    """Open the run directory, read the data, and return a run that is ready to train. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, where one of these is impossible.
    """
    if plan.config.train.reproducible != "none":
        # BLAS rounds differently on one thread and on several, and how many there are depends on the machine
        threadpool_limits(1, user_api="blas")
    opened: list[RunDir] = []
    cluster.agree(lambda: opened.append(open_run(plan.resolved, network(plan).layout.describe())))
    run_dir = opened[0] if opened else None
    try:
        places, sizes = plan.places, planned(cluster, plan)
        residency.fit(cluster, places, sizes, plan.config.placement)
        allocator = Allocator(places.allocate)
        data, arrays = _take(cluster, plan, sizes, allocator)
        made = cluster.agree_everywhere(lambda: build(cluster, plan, arrays, allocator))
        made.blocks = [*allocator.blocks, *([("data", data)] if cluster.link.leads else [])]
        made.labels["placement"] = residency.summary(cluster, places)
        if run_dir:
            made.run_dir, made.view = run_dir, View(plan.config.train.epochs, made.sampler.n_steps, quiet)
            if not quiet:
                say(_headline(made))
        _compile(made, quiet)
        _begin(made)
        _prove(made, quiet)
    except BaseException:
        if run_dir and run_dir.new:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise
    return made


def _take(cluster: Cluster, plan: Plan, sizes: dict[str, int], allocator: Allocator) -> tuple[np.ndarray, Arrays]:
    """Take the memory of every role, and read the data into theirs; return what :func:`psframe.data.hold` does.

    What must lie on certain nodes comes first, on all ranks: what may lie elsewhere would fill them.
    """
    places, data = plan.places, None
    for strict in (True, False):
        roles = [role for role in sizes if places.is_strict(role) is strict and role not in SHARED]

        def take(roles: list[str] = roles) -> None:
            for role in roles:
                allocator.reserve(role, sizes[role])

        cluster.agree_everywhere(take)
        if places.is_strict("data") is strict:
            data = hold(cluster, plan.facts, plan.dataset, places)
    assert data is not None
    return data


def planned(cluster: Cluster, plan: Plan) -> dict[str, int]:
    """Return the bytes that this rank will take by role, from the code that will take them. All ranks must call."""
    allocator = Allocator()
    cluster.agree_everywhere(lambda: build(cluster, plan, _untouched(plan.facts), allocator))
    if cluster.link.leads:
        allocator.bytes_by_role["data"] = plan.facts.n_bytes
    return dict(allocator.bytes_by_role)


def _untouched(facts: Facts) -> Arrays:
    try:
        arrays = facts.arrays(np.zeros(facts.n_bytes, np.uint8))  # pages that are never touched are never resident
    except (MemoryError, ValueError):
        raise no_memory_for_data(facts.n_bytes, "no address space") from None
    arrays["moments"][1] = 1
    return arrays


def network(plan: Plan) -> Network:
    """Return the plan's network, without memory; UserError where its layers do not fit the data."""
    layers = plan.choices["model"](plan.facts.input_shape, plan.facts.n_classes)
    return Network(layers, plan.facts.input_shape, plan.facts.n_classes)


def build(cluster: Cluster, plan: Plan, arrays: dict[str, np.ndarray], allocator: Allocator) -> Run:
    """Make every part of a run on this rank, memory untouched; no rank waits for another here."""
    train, team, net = plan.config.train, plan.team, network(plan)
    optimizer = plan.choices["optimizer"]()
    if not all(hasattr(optimizer, name) for name in ("lr", "n_state", "update")):
        raise UserError(
            f"an optimizer must have lr, n_state and update, got {optimizer!r}; see psframe.optim.Optimizer"
        )
    arena = Arena(net.layout, optimizer.n_state if team.applies else 0, allocator)
    sampler = Sampler(plan.facts.n_train, team.n_workers, train.batch_size, train.seed)
    if isinstance(train.threads, int):
        n_threads = train.threads
    else:
        n_threads = min(affinity.allowed_threads(), max(1, int(net.flops * sampler.max_batch / THREAD_FLOPS)))
    net.bind(arena, sampler.max_batch, allocator, plan.config.nn.kernels, Threads(n_threads))
    alone = cluster.n_ranks == 1  # nobody to exchange with: every mode is then the same
    collective = Null if alone else plan.choices["collective"]
    return Run(
        config=plan.config,
        cluster=cluster,
        team=team,
        facts=plan.facts,
        network=net,
        sampler=sampler,
        batches=Batches(plan.facts, arrays, sampler.max_batch, train.seed, allocator),
        places=plan.places,
        collective=collective(team, net.layout.size, allocator, train.reproducible),
        updater=Updater(optimizer, arena.params, arena.state),
        sync=AllReduce() if alone else plan.choices["sync"](),
        labels=_labels(cluster, plan, alone, sampler) | {"threads": n_threads},
    )


def _labels(cluster: Cluster, plan: Plan, alone: bool, sampler: Sampler) -> dict[str, Any]:
    return {
        "model": plan.choices["model"].name,
        "dataset": plan.choices["dataset"].name,
        "sync_mode": "alone" if alone else plan.choices["sync"].name,
        "server": plan.team.server,
        "collective": None if alone else plan.choices["collective"].name,
        "n_ranks": cluster.n_ranks,
        "n_workers": plan.team.n_workers,
        "n_nodes": cluster.n_nodes,
        "batch_size": plan.config.train.batch_size,
        "global_batch": sampler.global_batch,
    }


def _headline(run: Run) -> str:
    labels = run.labels
    how = labels["sync_mode"] + (f" over {labels['collective']}" if labels["collective"] else "")
    server = f"a {labels['server']} server and " if labels["server"] == "dedicated" else ""
    places = f"{labels['n_ranks']} rank(s) on {labels['n_nodes']} node(s)"
    continued = ""
    if run.run_dir and run.run_dir.epoch:
        continued = f", continued after epoch {run.run_dir.epoch}"
    elif run.config.checkpoint.resume == "auto":
        continued = ", a new run: there is no unfinished one to continue"
    return (
        f"psframe {__version__}: {labels['model']} on {labels['dataset']} ({run.facts.n_train:,} training and "
        f"{run.facts.n_test:,} test samples), {how}, {places}: {server}{labels['n_workers']} worker(s) "
        f"x batch {labels['batch_size']}{continued}"
    )


def _compile(run: Run, quiet: bool) -> None:
    """Let Numba compile on each node's first rank, then the others find what it compiled in the cache on disk."""
    link = run.cluster.link
    if not link.leads:
        link.tell()
    notice = Timer(NOTICE_S, say, ["compiling the layers for this CPU, once a machine: up to a minute or two"])
    if run.run_dir and not quiet:
        notice.start()
    sample = np.zeros(1, np.int64)
    x, labels = run.batches.load("train", sample)
    try:
        run.network.gradients(x, labels, Pass(True, 0, 0, sample))
        run.network.evaluate(x, labels)
    except NumbaError as error:
        raise UserError(
            f"nn.kernels: {run.config.nn.kernels} must be compiled for this CPU, and Numba cannot "
            f"({reason(error)[:200]}); give nn.kernels=blas"
        ) from None
    finally:
        notice.cancel()
    if link.leads:
        link.tell()


def _begin(run: Run) -> None:
    """Give every rank the initial parameters, or those of the checkpoint that rank 0 has read."""
    arena, comm = run.network.arena, run.cluster.comm
    run.network.initialize(run.config.train.seed)
    begun = run.run_dir
    if begun and begun.saved:
        arena.params[:] = begun.saved.params
        arena.state[:] = begun.saved.state
    run.epoch, run.step = comm.bcast((begun.epoch, begun.step) if begun else None)
    if run.epoch and run.team.server is None:
        comm.Bcast(arena.state)
    run.sync.open(arena, run.collective, run.updater)


def _prove(run: Run, quiet: bool) -> None:
    """Hold the pages of every role against what was asked for, and write down where everything lies."""
    cluster, places, settings = run.cluster, run.places, run.config.placement
    every = residency.count(cluster, places, run.blocks)
    complaints = residency.verify(cluster, places, settings, every)
    ranks = residency.describe(cluster, places)
    if run.run_dir is None or every is None or ranks is None:
        return
    for of_rank, found in zip(ranks, every, strict=True):
        for role, pages in found.items():
            of_rank["roles"][role]["pages"] = pages.to_plain()
    lines = ",\n".join(json.dumps(of_rank) for of_rank in ranks)
    plain = f'{{"hbw_nodes": {list(places.site.topology.hbw)}, "ranks": [\n{lines}\n]}}\n'
    durably(lambda path: (path / "placement.json").write_text(plain), run.run_dir)
    notes = dict.fromkeys(note for of_rank in ranks for note in of_rank["notes"])
    for warning in () if quiet else (*notes, *complaints):
        print(f"psframe: warning: {warning}", file=sys.stderr, flush=True)
