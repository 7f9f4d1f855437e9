"""Setup of a run before training: compile, initialize (:func:`init_parameters`), open outputs, verify the placement."""

import json
from threading import Timer

from psframe.cluster import consistency
from psframe.nn.compiling_together import sharing
from psframe.nn.initial import initialize
from psframe.nn.jit import compiling
from psframe.nn.timed import time_layers
from psframe.nn.vectors import host
from psframe.record import metrics, sealed
from psframe.record.checkpoint import Saved
from psframe.record.flight import COMPILE, in_phase
from psframe.record.log import LOG
from psframe.record.run_dir import RunDir, durably
from psframe.record.tensorboard import Board
from psframe.record.trace import Trace
from psframe.record.usage import Usage, sampled_s
from psframe.record.view import View, say
from psframe.sync.server_mode import ServerMode
from psframe.train import moving, placement_report
from psframe.train.callbacks.calls import Calls
from psframe.train.checkpointer import Checkpointer
from psframe.train.faults.injection import Crash
from psframe.train.outputs import NoBoard, NoUsage, Outputs
from psframe.train.run import Run
from psframe.train.schedule import falls_to_the_end, learning_rate

NOTICE_S = 3.0  # compiling for longer than this prints a notice


@in_phase(COMPILE)
def _compile(run: Run, quiet: bool) -> None:
    """Let Numba compile on the ranks of each node, as many as there are cores.

    Then the node's first rank computes a sample, and compiles what is left; then the others load it all from disk. With
    stages, the ranks of each stage do so, as their layers differ. Shards, which wait for each other in the layers, all
    compile.
    """
    cluster = run.group.cluster if run.group.is_stage else run.cluster
    waits = any(layer.together for _, layer in run.network.active)
    notice = Timer(
        NOTICE_S,
        say,
        ["compiling the layers for this CPU, once for each network: up to a minute or two"],
    )
    if run.outputs.run_dir and not quiet:
        notice.start()
    try:
        if cluster.node_rank < cluster.rendezvous.n_cores and not waits:
            sharing(run.work.warm)
        cluster.link.gather(b"")
        if not cluster.link.leads:
            cluster.link.tell()
        with compiling(run.config.nn.kernels):
            run.work.warm()
            run.collective.warm()
    finally:
        notice.cancel()
    if cluster.link.leads:
        cluster.link.tell()


def init_parameters(run: Run, saved: Saved | None, quiet: bool) -> None:
    """Compile, and set every rank's parameters: initial ones, or rank 0's ``saved`` state. All ranks must call."""
    _compile(run, quiet)
    arena, cluster = run.network.arena, run.cluster
    continues = any(cluster.allgather(saved is not None))  # none is late while it compiles
    leads = run.group.leads
    is_told = continues and run.collective.traits.moves_data  # of what rank 0 has saved, when the mode opens
    pulls = isinstance(run.sync, ServerMode) and run.team.worker is not None  # rank 0's, when the mode opens
    if not is_told and not pulls and (leads or not arena.shared):
        initialize(run.network, run.config.train.seed)
    if saved:
        run.model_state.params[:] = saved.params
        # not strict: a rank alone has the optimizer's rows only; a mode's further rows are dropped, or begin anew
        for row, saved_row in zip(run.rows(), saved.state, strict=False):
            row[:] = saved_row
    progress = run.progress
    place = (saved.epoch, saved.step, saved.cursor) if saved else (0, 0, 0)
    told = cluster.bcast((*place, progress.lr, progress.failed_step, progress.stop))
    progress.epoch, progress.step, progress.begun_at, progress.lr, progress.failed_step, progress.stop = told
    run.sampler.cursor = progress.begun_at
    if run.full_model and progress.step:
        run.full_model.scatter(cluster.bcast(len(saved.state) if saved else 0))
    if progress.step and (arena.shared or run.team.server is None):
        state_comm = run.group.leaders if arena.shared else run.team.comm
        for row in arena.state if leads or not arena.shared else ():
            state_comm.Bcast(row)
    run.sync.open(run.updater)
    if run.updater.average and not progress.step and (leads or not arena.shared):
        arena.state[-1:] = arena.params  # no row on ranks that update nothing
    if arena.params_bf16 is not None:
        if leads or not arena.shared:
            arena.refresh_bf16()
        cluster.allgather(None)


def outputs(run: Run, run_dir: RunDir | None, trace: Trace, data: int, quiet: bool, calls: Calls) -> Outputs:
    """Return this rank's outputs; ``run_dir`` is None except on rank 0. ``data`` is the checksum of the samples."""
    config = run.config
    usage = Usage(sampled_s(run_dir.path) if run_dir else 0.0) if config.record.usage else NoUsage()
    if run_dir is None:
        return Outputs(trace=trace, usage=usage)
    average = run.updater.optimizer.n_state + 1 if run.updater.average else 0
    return Outputs(
        run_dir,
        Checkpointer(run_dir, config.checkpoint, Crash(config.fault.crash_at), data, calls.checkpoint, average),
        View(config.train.epochs, run.sampler.n_steps, quiet),
        trace,
        usage,
        Board(run_dir.path, run_dir.epoch, run_dir.step) if config.record.tensorboard else NoBoard(),
        calls,
    )


def attach(run: Run) -> None:
    """Let the layers' passes move pages if a plan has some move, and be traced if the run is."""
    moving.attach(run)
    if run.outputs.trace.turns:
        for network in run.work.networks:
            time_layers(network, run.outputs.trace.passes)


def audit_placement(run: Run, quiet: bool) -> None:
    """Compare the pages of every role with the requested placement, and write placement.json. All ranks must call."""
    cluster, places, settings = run.cluster, run.places, run.config.placement
    pages_by_rank = placement_report.count(cluster, places, run.blocks)
    complaints = [*placement_report.verify(cluster, places, settings, pages_by_rank), *consistency.late_clocks(cluster)]
    ranks = placement_report.describe(cluster, places)
    run_dir = run.outputs.run_dir
    if run_dir is None or pages_by_rank is None or ranks is None:
        return
    for details, pages_by_role in zip(ranks, pages_by_rank, strict=True):
        for role, pages in pages_by_role.items():
            details["roles"][role]["pages"] = pages.to_plain()
    lines = ",\n".join(json.dumps(details) for details in ranks)
    plan_line = f'"plan": {json.dumps(places.plan)},\n' if places.plan else ""
    text = f'{{"hbw_nodes": {list(places.site.topology.hbw)}, {plan_line}"ranks": [\n{lines}\n]}}\n'
    durably(lambda path: sealed.put(path / "placement.json", text), run_dir)
    notes = dict.fromkeys(note for details in ranks for note in details["notes"])
    for warning in (*run_dir.notices, *_changed(run, run_dir), *_slower(run), *notes, *complaints):
        LOG.warning(warning, extra={"of": warning, "told": quiet})


def _changed(run: Run, run_dir: RunDir) -> list[str]:
    """Return notices on changed steps of a continued run, which may use other ranks or another grid."""
    records = metrics.read(run_dir.path) if run_dir.saved else []
    if not records:
        return []
    kinds = {"global_batch": "samples a step", "micro_batches": "micro-batches"}
    pairs = {kind: (records[-1].get(key, 1), run.labels.get(key, 1)) for key, kind in kinds.items()}
    notices = _other_rates(run, run_dir)
    changes = [f"{now} {kind}, not {then}" for kind, (then, now) in pairs.items() if then != now]
    if changes:
        notices.append(f"the run goes on with {', and '.join(changes)}: not to the bits of a run that stayed as it was")
    return notices


def _slower(run: Run) -> list[str]:
    """Return a notice if this CPU would be faster in float32."""
    if run.network.dtype == "float32" or host().fast_bf16:
        return []
    return [
        "train.precision=bf16 takes two multiply-adds for each pair on this CPU: it halves the memory of activations, "
        "and is slower than float32"
    ]


def _other_rates(run: Run, run_dir: RunDir) -> list[str]:
    """Return a notice if the number of epochs, and with it a schedule that ends with them, has changed."""
    schedule, now, then = run.config.schedule, run.config.train.epochs, run_dir.planned
    if not falls_to_the_end(schedule) or then in (None, now):
        return []
    lr, begun = run.updater.optimizer.lr, run.progress.epoch + run.progress.begun_at / run.facts.n_train
    rates = [learning_rate(schedule, lr, epochs, run.sampler.global_batch, begun, begun) for epochs in (then, now)]
    return [
        f"schedule {schedule.name} ends after {now} epochs now, not {then}: the learning rate goes on at "
        f"{rates[1]:.3g}, where it was at {rates[0]:.3g}"
    ]
