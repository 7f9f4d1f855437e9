"""Tables of ``docs/reference/combinations.md`` (:func:`table`), from :data:`psframe.train.plan.combinations.RULES`.

``python -m tests.helpers.combination_table`` prints them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from psframe import collectives, sync
from psframe.config import registry, schema
from psframe.sync.traits import Traits
from psframe.train.plan.combination import Combination
from psframe.train.plan.combinations import RULES

#: rows of the first table: values of ``sync`` in a config
MODES = (
    "allreduce",
    "{mode: sync_ps, server: dedicated}",
    "{mode: sync_ps, server: colocated}",
    "{mode: sync_ps, server: colocated, servers: 2}",
    "{mode: sync_ps, backup_workers: 1}",
    "async_ps",
    "{mode: async_ps, staleness: 0}",
    "easgd",
    "{mode: easgd, synchronous: true}",
    "hogwild",
    "dogwild",
    "local_sgd",
    "block_momentum",
    "hybrid",
)
#: rows of the second table: values of ``collective``
COLLECTIVES = ("shared", "hierarchical", "buffer", "object", "{name: buffer, compression: fp16}", "null")
#: columns: what models have, by its name there
MODELS = {"batch statistics": {"statistic": "mean"}, "those of all workers": {"statistic": "mean", "meets": "workers"}}
#: columns: further options, by section of the config
BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "`parallel`": {"parallel": {"pipeline": 2}},
    "`any_workers`": {"train": {"reproducible": "any_workers", "global_batch": 64}},
    "`on_nan: skip`": {"fault": {"on_nan": "skip"}},
    "`rollback`": {"fault": {"on_nan": "rollback"}},
    "`check_every`": {"fault": {"check_every": 10}},
    "`on_worker_loss`": {"fault": {"on_worker_loss": "continue"}},
    "`average`": {"average": "ema"},
    "`balance`": {"sync": {"balance": "speed"}},
    **{name: {} for name in MODELS},
}


def table() -> str:
    """Return the tables of options that a sync mode and a collective can be combined with, in Markdown."""
    heads = ["`sync`", "same parameters", "through", *BESIDE]
    rows = [[f"`{mode}`", *_described(asked_for(mode).traits), *_marks(mode, "buffer")] for mode in MODES]
    columns = ("`any_workers`", *MODELS)
    lines = [_line(heads), _line(["---"] * len(heads)), *map(_line, rows), ""]
    lines += [_line(["`collective`", "`sync.servers`", *columns]), _line(["---"] * (2 + len(columns)))]
    for collective in COLLECTIVES:
        several = _mark(asked_for("{mode: sync_ps, servers: 2}", collective))
        marks = dict(zip(BESIDE, _marks("allreduce", collective), strict=True))
        lines.append(_line([f"`{collective}`", several, *(marks[column] for column in columns)]))
    return "\n".join(lines)


def _described(traits: Traits) -> tuple[str, str]:
    through = [*["a collective"] * traits.exchanges, *["a store"] * bool(traits.store)]
    when = {"step": "after each step", "period": "every few steps", "none": "at the end of an epoch"}
    return when[traits.consistency], " and ".join(through) or "shared memory"


def _marks(mode: str, collective: str) -> Iterator[str]:
    for name, sections in BESIDE.items():
        asked = asked_for(mode, collective, **sections)
        yield _mark(replace(asked, **MODELS.get(name, {})))


def _mark(asked: Combination) -> str:
    return "" if any(rule(asked) for rule in RULES) else "yes"


def asked_for(mode: str, collective: str = "buffer", **sections: dict[str, Any]) -> Combination:
    chosen = schema.parse_value(mode)
    chosen = {**({"mode": chosen} if isinstance(chosen, str) else chosen), **sections.pop("sync", {})}
    spec = {"name": "table", "model": "lenet", "dataset": "digits", **sections}
    config = schema.resolve({**spec, "sync": chosen, "collective": schema.parse_value(collective)})
    choice = registry.bind("sync", sync.TABLE, config.sync, "mode", sync.Common)
    return Combination(
        choice.name, sync.make(choice).traits, config, registry.bind("collective", collectives.TABLE, config.collective)
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table())
