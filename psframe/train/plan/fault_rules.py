"""Rules on what goes together with reactions to faults and with ranks that come and go: of ``combinations.RULES``."""

from psframe.train.plan.combination import Combination, spelled


def lost_workers_must_be_dispensable(asked: Combination) -> str:
    if asked.config.fault.on_worker_loss == "stop" or asked.effective.survives:
        return ""
    return (
        "fault.on_worker_loss: continue must have a sync.mode that can do without a rank (sync_ps with one server, "
        f"allreduce, async_ps, easgd, hogwild, local_sgd, block_momentum), got {asked.mode}; give "
        "fault.on_worker_loss=stop, and let `python -m psframe.run --restarts K` start the job again"
    )


def elastic_ranks_have_whole_networks(asked: Combination) -> str:
    if asked.config.elastic.ranks is None or not asked.config.parallel.is_cut:
        return ""
    cut = spelled(asked.config.parallel)
    return f"elastic.ranks is for ranks with the whole network, got {cut}; leave one of them out"


def nonfinite_gradients_must_be_droppable(asked: Combination) -> str:
    on_nan, allowed = asked.config.fault.on_nan, asked.effective.on_nan
    if on_nan in allowed:
        return ""
    return (
        f"fault.on_nan must be {' or '.join(allowed)} in this sync mode, got {on_nan}; "
        f"give fault.on_nan={allowed[0]} or a mode that has it: allreduce, sync_ps with one server"
    )


def checked_ranks_must_step_together(asked: Combination) -> str:
    check_every = asked.config.fault.check_every
    if not check_every or asked.effective.drops == "steps":
        return ""
    return (
        f"fault.check_every must be 0 where ranks do not step together, or several serve, got {check_every}; "
        "give fault.check_every=0, or sync=allreduce, or sync=sync_ps with one server"
    )
