"""Combinations of options: :func:`check` alone decides which are valid, by :data:`RULES`.

A rule is a function of a :class:`Combination`; its name states the constraint. It returns an error message, or ""
if the constraint holds.
"""

from collections.abc import Callable

from psframe.collectives.traits import of_choice
from psframe.errors import UserError
from psframe.train.plan.combination import Combination, spelled
from psframe.train.plan.fault_rules import (
    checked_ranks_must_step_together,
    elastic_ranks_have_whole_networks,
    lost_workers_must_be_dispensable,
    nonfinite_gradients_must_be_droppable,
)

BLOCK_MODES = "sync.mode=allreduce, or sync_ps without backup_workers,"
BLOCK_COLLECTIVES = "the collectives shared, hierarchical, buffer and object, without compression,"


def check(asked: Combination) -> None:
    """Raise UserError with the message of the first of :data:`RULES` that is violated."""
    for rule in RULES:
        if message := rule(asked):
            raise UserError(message)


def blocks_are_no_micro_batches(asked: Combination) -> str:
    parallel = asked.config.parallel
    has_micro = parallel.is_cut or parallel.micro_batches not in ("auto", 1)
    if asked.config.train.reproducible != "any_workers" or not has_micro:
        return ""
    return (
        f"train.reproducible: any_workers cuts a step into blocks of its own, got it with {spelled(parallel)} and "
        f"parallel.micro_batches={parallel.micro_batches}; give fixed_workers"
    )


def bfloat16_needs_compiled_kernels(asked: Combination) -> str:
    if asked.config.train.precision == "float32" or asked.config.nn.kernels == "direct":
        return ""
    return (
        f"train.precision: {asked.config.train.precision} must have kernels that compute in it, got "
        f"nn.kernels={asked.config.nn.kernels}; give nn.kernels=direct, or train.precision=float32"
    )


def fewer_products_need_whole_layers(asked: Combination) -> str:
    parallel = asked.config.parallel
    if asked.config.nn.kernels != "winograd" or parallel.model == 1 or parallel.convolutions == "data":
        return ""
    return (
        f"nn.kernels: winograd chooses by a layer's channels, got parallel.model={parallel.model} shards of "
        "them, whose bits would be others; give nn.kernels=direct, or parallel.convolutions=data"
    )


def shares_by_speed_need_one_mean_a_step(asked: Combination) -> str:
    if asked.config.sync.get("balance", "none") == "none" or asked.alone:
        return ""
    parallel = asked.config.parallel
    if not (asked.traits.same_each_step and asked.traits.one_mean):
        return (
            f"sync.balance: speed is for sync_ps without backup_workers and for allreduce, got {asked.mode}; give one "
            "of these, or sync.balance=none: async_ps, easgd, hogwild and dogwild deal shares to whom is free"
        )
    if parallel.is_cut or parallel.micro_batches not in ("auto", 1):
        return (
            f"sync.balance: speed is for workers with the whole network and batch, got {spelled(parallel)} and "
            f"parallel.micro_batches={parallel.micro_batches}; leave these out, or give sync.balance=none"
        )
    if asked.meets == "workers":
        return (
            "sync.balance: speed is for samples that meet those of one worker alone, got a model with over=workers; "
            "give over=batch, or sync.balance=none"
        )
    return ""


def convolutions_by_samples_need_shards_alone(asked: Combination) -> str:
    parallel = asked.config.parallel
    if parallel.convolutions != "data" or (parallel.model > 1 and parallel.pipeline == 1):
        return ""
    return (
        "parallel.convolutions: data is for parallel.model=2 or more without a pipeline, got it with model: "
        f"{parallel.model} and pipeline: {parallel.pipeline}; give these, or parallel.convolutions=model"
    )


def recomputation_needs_stages(asked: Combination) -> str:
    parallel = asked.config.parallel
    if parallel.pipeline > 1 or not parallel.recompute:
        return ""
    return (
        "parallel.recompute is for the stages of a pipeline, got it without one; give parallel.pipeline, or "
        "parallel.micro_batches: where there is one stage, one micro-batch alone keeps its activations"
    )


def cut_networks_need_replicas_in_step(asked: Combination) -> str:
    if not asked.config.parallel.is_cut:
        return ""
    what, traits = spelled(asked.config.parallel), asked.traits
    instead = "give sync=allreduce, or sync='{mode: sync_ps, server: colocated}'"
    if not traits.same_each_step or not traits.one_mean or traits.n_servers > 1:
        several = " with sync.servers or sync.backup_workers" if asked.mode == "sync_ps" else ""
        return f"{what} must have a mode in which all replicas step together, got {asked.mode}{several}; {instead}"
    if traits.server == "dedicated":
        return f"{what} needs every rank for a part of the network, got sync.server=dedicated; {instead}"
    return ""


def cut_networks_have_no_whole_step(asked: Combination) -> str:
    if not asked.config.parallel.is_cut:
        return ""
    for key, required in (("on_worker_loss", "stop"), ("on_nan", "stop"), ("check_every", 0), ("flip", "none")):
        if (got := getattr(asked.config.fault, key)) != required:
            return (
                f"fault.{key} must be {required} with {spelled(asked.config.parallel)}, where rank 0 has not "
                f"all parameters between two steps, got {got}; give fault.{key}={required}"
            )
    return ""


def several_servers_need_a_collective_that_knows_them(asked: Combination) -> str:
    choice, n_servers = asked.collective, asked.traits.n_servers
    if choice is None or asked.alone or n_servers == 1:
        return ""
    traits = of_choice(choice)
    if traits.supports_sharding and not traits.exact:
        return (
            f"collective.compression must be none under several servers, got {choice.arguments['compression']!r} and "
            f"sync.servers={n_servers}; give collective.compression=none or sync.servers=1"
        )
    if traits.supports_sharding:
        return ""
    return (
        f"sync.servers must be 1 where a collective knows one server alone, got {n_servers} and "
        f"collective={choice.name}; give collective=buffer or sync.servers=1"
    )


def blocks_must_be_summed_in_the_order_of_the_tree(asked: Combination) -> str:
    choice = asked.collective
    if choice is None or asked.config.train.reproducible != "any_workers":
        return ""
    instead = "give one of these, or train.reproducible=fixed_workers"
    if not asked.traits.one_mean:
        return f"train.reproducible: any_workers is for {BLOCK_MODES} got {asked.mode}; {instead}"
    traits, codec = of_choice(choice), choice.arguments.get("compression", "none")
    if traits.supports_tree_sum and traits.exact:
        return ""
    got = choice.name if traits.exact else f"{choice.name} with compression {codec}"
    return f"train.reproducible: any_workers is for {BLOCK_COLLECTIVES} got {got}; {instead}"


def reductions_choose_the_order_of_sums(asked: Combination) -> str:
    choice, reproducible = asked.collective, asked.config.train.reproducible
    if choice is None or choice.arguments.get("gather") != "reduce" or reproducible == "none":
        return ""
    return (
        f"collective.gather: reduce lets MPI choose the order of a sum, got train.reproducible={reproducible}; "
        "give train.reproducible=none or collective.gather=gather"
    )


def statistics_must_be_averaged(asked: Combination) -> str:
    if not asked.statistic or asked.alone:
        return ""
    clause, name = "where the model keeps statistics of its batches", asked.statistic
    instead = "or let the model keep none, as by GroupNorm, or BatchNorm with track_running_stats=False"
    if not asked.traits.averages_statistics:
        return (
            f"sync.mode must take means over workers {clause}, got {asked.mode} and {name}; give sync_ps, allreduce, "
            f"local_sgd, block_momentum or easgd, {instead}"
        )
    if asked.traits.exchanges and asked.collective and not of_choice(asked.collective).exact:
        return f"collective.compression must be none {clause}, got one and {name}; give none, {instead}"
    return ""


def samples_meet_where_workers_take_the_same_steps(asked: Combination) -> str:
    if asked.meets != "workers":
        return ""
    clause = "BatchNorm with over=workers must have samples of whole batches"
    parallel = asked.config.parallel
    if parallel.is_cut or parallel.micro_batches not in ("auto", 1):
        return (
            f"{clause}, got {spelled(parallel)} and parallel.micro_batches={parallel.micro_batches}; leave these out, "
            "or give over=batch"
        )
    if not asked.alone and not asked.traits.one_mean:
        return f"{clause} of all workers in a step, got {asked.mode}; give {BLOCK_MODES} or over=batch"
    return ""


def averages_count_steps_of_one_model(asked: Combination) -> str:
    name, parallel = asked.config.average.name, asked.config.parallel
    if name == "none":
        return ""
    if parallel.is_cut:
        return (
            f"average={name} must have ranks with the whole network, got {spelled(parallel)}; drop the latter, or "
            "give average=none"
        )
    if not asked.alone and not asked.traits.updates_once_a_step:
        return (
            f"average={name} must have a mode that updates one model once a step (allreduce, sync_ps, async_ps with "
            f"staleness: 0), got {asked.mode}; give one of these, or average=none"
        )
    return ""


def one_cycle_warms_up_by_itself(asked: Combination) -> str:
    schedule = asked.config.schedule
    if schedule.name != "one_cycle" or not schedule.warmup_epochs:
        return ""
    return (
        f"schedule.warmup_epochs must be 0 with one_cycle, whose rate rises by itself, got {schedule.warmup_epochs:g}; "
        "give schedule.rise in its place"
    )


def norms_need_whole_tensors(asked: Combination) -> str:
    parallel, optimizer = asked.config.parallel, asked.config.optimizer
    if asked.cuts == "nowhere" and parallel.is_cut:
        return (
            f"optimizer.clip_norm needs ranks that have the whole network, got {optimizer.get('clip_norm')} with "
            f"{spelled(parallel)}; give optimizer.clip_value in its place, or drop the latter"
        )
    if asked.cuts == "tensors" and parallel.model > 1:
        return (
            f"optimizer={optimizer['name']} needs norms of whole tensors, of which a rank has a part with "
            f"parallel.model, got {parallel.model}; give parallel.pipeline, or another optimizer"
        )
    choice = asked.collective
    if asked.cuts == "anywhere" or choice is None or asked.alone or not asked.traits.exchanges:
        return ""
    if of_choice(choice).keeps_tensors or not asked.traits.updates_shared:
        return ""
    return (
        f"collective must keep whole what optimizer={optimizer['name']} needs the norm of, got {choice.name}, whose "
        "traits do not say so (keeps_tensors); give one of psframe's, or another optimizer"
    )


#: in the order of checking; each returns an error message, or "" if it holds
RULES: tuple[Callable[[Combination], str], ...] = (
    bfloat16_needs_compiled_kernels,
    fewer_products_need_whole_layers,
    blocks_are_no_micro_batches,
    shares_by_speed_need_one_mean_a_step,
    convolutions_by_samples_need_shards_alone,
    recomputation_needs_stages,
    cut_networks_need_replicas_in_step,
    cut_networks_have_no_whole_step,
    lost_workers_must_be_dispensable,
    elastic_ranks_have_whole_networks,
    nonfinite_gradients_must_be_droppable,
    checked_ranks_must_step_together,
    several_servers_need_a_collective_that_knows_them,
    blocks_must_be_summed_in_the_order_of_the_tree,
    reductions_choose_the_order_of_sums,
    statistics_must_be_averaged,
    samples_meet_where_workers_take_the_same_steps,
    averages_count_steps_of_one_model,
    one_cycle_warms_up_by_itself,
    norms_need_whole_tensors,
)
