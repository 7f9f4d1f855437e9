"""Construction of a run from its plan: :func:`run` reads the data and calls :func:`build`, which makes every part."""

import gc
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from psframe import collectives, sync
from psframe.cluster import affinity, consistency
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.collectives.null import Null
from psframe.config import registry
from psframe.config.schema import Fault
from psframe.errors import UserError
from psframe.memory.allocator import Allocator, untouched
from psframe.memory.arena import Keeping
from psframe.nn import operations
from psframe.nn.network import Network
from psframe.nn.threads import Threads
from psframe.optim import Updater
from psframe.record.flight import ALLOCATE, in_phase
from psframe.record.run_dir import RunDir, durably, open_run
from psframe.record.trace import UNTRACED, Trace
from psframe.record.view import tell
from psframe.sync.allreduce import AllReduce
from psframe.sync.balance import NO_BALANCE, Balance
from psframe.sync.base import Mode
from psframe.sync.binding import bind
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import resolved
from psframe.sync.tally import Tally
from psframe.sync.traits import Traits
from psframe.train import placement_report
from psframe.train.assembly import setup, stages
from psframe.train.assembly.accesses import of_step
from psframe.train.assembly.allocate import adopt, homes, take
from psframe.train.assembly.sizes import Sizes
from psframe.train.assembly.windows import windows
from psframe.train.callbacks.calls import Calls
from psframe.train.compute import any_workers
from psframe.train.compute.evaluated import Averaged, Current
from psframe.train.compute.local import layer_hook
from psframe.train.data.dataset import Facts, LoadedData, no_memory_for_data
from psframe.train.faults import guard
from psframe.train.plan import combinations
from psframe.train.plan.combination import Combination
from psframe.train.plan.plan import Plan, acquaint
from psframe.train.run import Run, headline

T = TypeVar("T")

NOTHING_MOVES = (
    "placement.activations.move_gbps has no effect: what moves is of layers that a batch passes as one, once a step"
)
THREAD_FLOPS = 4e8  # of a step, per thread: below this, waking a thread costs more than it saves


def run(
    cluster: Cluster, plan: Plan, quiet: bool, calls: Calls, built: Callable[[Run], None] = lambda run: None
) -> Run:
    """Open the run directory, read the data, and return a run that is ready to train. All ranks must call.

    ``calls`` are rank 0's callbacks. ``built`` is given the run before it computes.

    Raises
    ------
    AgreedError
        On every rank, if one of these is impossible.
    """
    limit_blas(plan)
    layout = consistency.same_network(cluster, plan.network).whole
    cluster.run_on_root(lambda: plan.check_tensors(layout))
    if "torch" in sys.modules:
        gc.collect()  # frees that network: PyTorch's first pass leaves a reference cycle with its module
    opened: list[RunDir] = []
    cluster.run_on_root(lambda: opened.append(open_run(plan.resolved, layout)))
    run_dir = opened[0] if opened else None
    try:
        trace = Trace(plan.config.record.traced_turns)
        new_run = with_fallback(cluster, plan, lambda: build_run(cluster, plan, trace=trace))
        plan.dataset = None  # what it has read lies in the node's memory now
        built(new_run)
        data = cluster.run_on_root(lambda: _note_data(plan.facts, new_run, run_dir))
        new_run.labels["placement"] = placement_report.summary(cluster, plan.places)
        collective = plan.resolved["collective"]["name"]
        if new_run.labels["collective"] not in (None, collective):
            new_run.labels["collective"] = f"{collective} -> {new_run.labels['collective']}"
        new_run.outputs = setup.outputs(new_run, run_dir, trace, data, quiet, calls)
        if run_dir:
            tell(headline(new_run, plan.unused), quiet)
        setup.init_parameters(new_run, run_dir.saved if run_dir else None, quiet)
        setup.attach(new_run)
        setup.audit_placement(new_run, quiet)
    except BaseException:
        if run_dir and run_dir.new:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise
    return new_run


def limit_blas(plan: Plan) -> None:
    """Give BLAS one thread if bits count: it rounds differently with their number, which depends on the machine."""
    if plan.config.train.reproducible != "none":
        threadpool_limits(1, user_api="blas")


def _note_data(facts: Facts, run: Run, run_dir: RunDir | None) -> int:
    """Return the data's checksum, and note their shape and normalization, on rank 0.

    UserError if the run continues one that was trained on other data.
    """
    checksum = run.held.checksum >> 1  # integers in a checkpoint have 63 bits
    saved = run_dir.saved if run_dir else None
    if saved and (saved.data not in (0, checksum) or saved.cursor > facts.n_train):
        raise UserError(
            "a continued run must have the data that it was begun with, in the same order, got other samples "
            f"({facts.n_train:,} to train, {facts.n_test:,} to test) in the place of those of "
            f"{str(run_dir and run_dir.path)!r}; give it those, or start anew with checkpoint.resume=none"
        )
    if run_dir:
        durably(facts.inputs(run.held.arrays["moments"]).write, run_dir)
    return checksum


@in_phase(ALLOCATE)
def build_run(cluster: Cluster, plan: Plan, held: LoadedData | None = None, trace: Trace = UNTRACED) -> Run:
    """Allocate a run's memory, read the data unless ``held`` has them, and build the run. All ranks must call."""
    sizes, asked = measure_memory(cluster, plan, held is not None)
    if asked != plan.asked:  # again, for the rules on what samples have in common, which need the network
        cluster.run_on_root(lambda: combinations.check(asked))
    acquaint(plan, cluster, asked.meets)
    placement_report.fit(cluster, plan.places, sizes, plan.config.placement, trained=held is not None)
    allocator = Allocator(plan.places.allocate, homes(cluster, plan.places))  # again: spilled roles use other pages
    data = take(cluster, plan, sizes, allocator, held)
    new_run = cluster.run_on_all(lambda: build(cluster, plan, data, allocator, trace))
    adopt(cluster, plan.places, allocator)
    clusters = [plan.group.cluster, *([plan.others.cluster] if plan.others else [])]
    new_run.inner = [inner for inner in clusters if inner is not cluster]
    new_run.blocks = [*allocator.blocks, *([("data", data.memory)] if cluster.link.leads else [])]
    return new_run


def measure_memory(cluster: Cluster, plan: Plan, has_data: bool = False) -> tuple[Sizes, Combination]:
    """Return the bytes that this rank will allocate, counted by a first :func:`build`, and what its network asks for.

    All ranks must call.
    """
    allocator = Allocator(homes=homes(cluster, plan.places))
    first = cluster.run_on_all(lambda: build(cluster, plan, _untouched(plan.facts), allocator))
    sizes = Sizes.of(allocator, plan.facts.n_bytes if cluster.link.leads and not has_data else 0)
    if plan.places.auto:
        sizes = _with_accesses(plan, first, sizes)
    return sizes, plan.asked.of(first.network)


def _with_accesses(plan: Plan, first: Run, sizes: Sizes) -> Sizes:
    """Return the sizes with what a step reads and writes, and the phases in which activations are used."""
    works, samples, asked = first.team.worker is not None, first.sampler.max_batch, plan.places.auto.get("activations")
    reads = plan.facts.sample_bytes if plan.grid.stage == 0 else 0
    accesses = of_step(first.network, samples, works, first.team.applies_updates, sizes.by_place, reads)
    used = windows(first.network, samples, sizes.by_place) if works and not first.work.several else {}
    if works and not used and asked and asked.move_gbps:
        plan.places.site.note(NOTHING_MOVES)
    return replace(sizes, accesses=accesses, windows=used)


def with_fallback(cluster: Cluster, plan: Plan, body: Callable[[], T]) -> T:
    """Return the result of ``body``; if it fails, call it again with the collective's configured fallback.

    All ranks must call.
    """
    try:
        return body()
    except AgreedError as error:
        choice = plan.choices["collective"]
        fallback = choice.arguments.get("fallback", "none")
        if fallback == "none":
            raise
        plan.choices["collective"] = bound(fallback, choice.arguments)
        plan.places.site.note(f"collective={choice.name} fell back to {fallback}: {error}")
        return body()


def bound(name: str, arguments: Mapping[str, Any]) -> registry.Choice:
    """Return the collective of a name in place of another one, with those of its arguments that both take."""
    takes = registry.keywords(registry.load("collective.name", collectives.TABLE, name))
    spec = {key: value for key, value in arguments.items() if key in takes}
    return registry.bind("collective", collectives.TABLE, {"name": name, **spec})


def planned(cluster: Cluster, plan: Plan) -> Sizes:
    """Return the bytes that this rank will allocate. All ranks must call."""
    return with_fallback(cluster, plan, lambda: measure_memory(cluster, plan))[0]


def _untouched(facts: Facts) -> LoadedData:
    try:
        memory = np.ndarray(facts.n_bytes, np.uint8, untouched("data", facts.n_bytes))
        arrays = facts.arrays(memory)
    except (MemoryError, ValueError, OverflowError, OSError):
        raise no_memory_for_data(facts.n_bytes, "no address space") from None
    arrays["moments"][1] = 1
    return LoadedData(memory, arrays, 0)


def build(cluster: Cluster, plan: Plan, held: LoadedData, allocator: Allocator, trace: Trace = UNTRACED) -> Run:
    """Build every part of a run on this rank, without touching memory: first to count bytes, then with memory.

    No rank waits for another here.
    """
    train, team, net = plan.config.train, plan.team, plan.part()
    optimizer, average = plan.choices["optimizer"](), plan.average
    alone = team.comm.size == 1  # no rank to exchange with: all modes are then equal
    mode = AllReduce() if alone else sync.make(plan.choices["sync"])
    choice = Null if alone else plan.choices["collective"]
    balance, nodes = plan.choices["sync"].common["balance"], cluster.nodes_of(team.workers)
    sampler = any_workers.sampler(plan.facts.n_train, team.n_workers, train, balance, nodes)
    fault, group = plan.config.fault, plan.group
    bind_args = (cluster, team, group, net.layout, optimizer, sampler, allocator, average is not None)
    keeping, tally = _keeping(fault, mode.traits, net), Tally(trace)
    more: dict[str, Any] = {"tally": tally, "keeping": keeping, "drops_nonfinite": fault.on_nan == "skip"}
    collective, arena = bind(mode, choice, train.reproducible, *bind_args, **more)
    threads = Threads(_threads(train.threads, operations.of_step(net) * sampler.max_batch))
    work = stages.work(cluster, plan, held.arrays, sampler, net, arena, threads, allocator, trace)
    updater = Updater(optimizer, arena, guard.checksums(fault, cluster, team, arena), trace, allocator, average)
    return Run(
        config=plan.config,
        cluster=cluster,
        team=team,
        facts=plan.facts,
        held=held,
        network=net,
        sampler=sampler,
        batches=work.batches,
        full_model=stages.full_model(cluster, plan, net, arena, optimizer.n_state, allocator),
        places=plan.places,
        collective=collective,
        updater=updater,
        guard=guard.Guard(plan.config, cluster, team, mode.traits, tally, collective, updater, work),
        hook=layer_hook(mode, collective, work),
        sync=mode,
        tally=tally,
        group=group,
        work=work,
        balance=Balance(sampler, cluster, team.worker) if any_workers.divides(sampler) else NO_BALANCE,
        evaluated=Averaged(cluster, net, arena, allocator) if average else Current(),
        labels=_labels(cluster, plan, mode if not alone else None, sampler) | {"threads": threads.n},
        metrics=plan.metrics,
    )


def _keeping(fault: Fault, traits: Traits, network: Network) -> Keeping:
    """Return what is kept of parameters: those that nothing but updates change, in what layers read, too."""
    return replace(guard.keeping(fault, traits), bfloat16=network.dtype == "uint16" and traits.same_each_step)


def _threads(asked: int | str, flops: float) -> int:
    """Return the number of threads with which a rank computes steps of ``flops`` operations."""
    return asked if isinstance(asked, int) else min(affinity.allowed_threads(), max(1, int(flops / THREAD_FLOPS)))


def _labels(cluster: Cluster, plan: Plan, mode: Mode | None, sampler: Sampler) -> dict[str, Any]:
    """Return the fields common to all records; ``mode`` is None for a rank that is alone."""
    return {
        "model": plan.choices["model"].name,
        "dataset": plan.choices["dataset"].name,
        "sync_mode": plan.choices["sync"].name if mode or plan.config.parallel.is_cut else "alone",
        "server": plan.team.server,
        "n_servers": len(plan.team.servers),
        "collective": plan.choices["collective"].name if mode and mode.traits.exchanges else None,
        "store": resolved(mode.traits.store, cluster.n_nodes) if mode and mode.traits.store else None,
        "n_ranks": cluster.n_ranks,
        "n_workers": plan.team.n_workers,
        "n_nodes": cluster.n_nodes,
        "batch_size": sampler.batch_size,
        "global_batch": sampler.global_batch,
        **({"stages": plan.grid.n_stages} if plan.grid.n_stages > 1 else {}),
        **({"shards": plan.grid.n_shards} if plan.grid.n_shards > 1 else {}),
        **({"micro_batches": plan.n_micro} if plan.n_micro > 1 else {}),
        **({"precision": train.precision} if (train := plan.config.train).precision != "float32" else {}),
        **({"average": plan.average.name} if plan.average else {}),
    }
