"""Construction of a run from one that ends in the same processes (:func:`rebuilt`): on other ranks, or from a state.

The data stay in memory.
"""

import gc
from dataclasses import replace

from psframe.cluster.cluster import Cluster
from psframe.memory.mover import NO_MOVER
from psframe.record.checkpoint import Saved
from psframe.record.flight import RING, STARTS, STATE
from psframe.train import placement_report
from psframe.train.assembly import assemble, setup
from psframe.train.data.dataset import LoadedData
from psframe.train.plan.plan import Plan, regrouped
from psframe.train.run import Run


def released(run: Run) -> LoadedData:
    """Free the memory of a run that ends here, but for its data; return the data."""
    for part in ("network", "batches", "work", "collective", "updater", "guard", "sync", "tally", "hook", "evaluated"):
        setattr(run, part, None)
    run.blocks, run.mover = [], NO_MOVER
    gc.collect()
    return run.held


def rebuilt(plan: Plan, cluster: Cluster, old: Run, held: LoadedData, saved: Saved | None) -> Run:
    """Return a new run on ``cluster`` that continues ``old`` from ``saved``, given on rank 0. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, if this is impossible.
    """
    RING.put(STATE, STARTS)  # ranks may compile again
    for inner in old.inner:
        inner.close()
    plan = regrouped(plan, cluster)
    chosen = cluster.bcast(plan.choices["collective"].name)  # others may have fallen back to it
    if chosen != plan.choices["collective"].name:
        plan.choices["collective"] = assemble.bound(chosen, plan.choices["collective"].arguments)
    new_run = assemble.with_fallback(cluster, plan, lambda: assemble.build_run(cluster, plan, held, old.outputs.trace))
    new_run.labels["placement"] = placement_report.summary(cluster, plan.places)
    if "startup_s" in old.labels:
        new_run.labels["startup_s"] = old.labels["startup_s"]
    new_run.outputs, new_run.progress = old.outputs, replace(old.progress, concluded=False)
    setup.init_parameters(new_run, saved, quiet=True)
    setup.attach(new_run)
    return new_run
