"""Corrections of predictions by epochs that were measured on the same machine (:func:`factor`), and their error.

The factor of a way is a weighted mean of measured over predicted seconds, as logarithms. An epoch counts the more the
more it is alike: the same model, the same exchange, near in ranks. ``PRIOR`` stands for an epoch that needed no
correction, so that few or remote ones change little.
"""

from collections.abc import Sequence
from math import exp, log, log2
from statistics import median

from psframe.predict.job import ExchangePlan, Work
from psframe.predict.machine import Check, Machine

PRIOR = 0.5  # weight of no correction
OTHER_MODEL, OTHER_EXCHANGE = 0.1, 0.3  # weights of epochs of another model, or exchange


def named(work: Work, way: ExchangePlan, machine: Machine, hosts: int) -> str:
    """Return the model, batch and exchange of an epoch, as :class:`Check` has them."""
    words = [work.model, f"batch {work.batches[0]}", way.method + way.encoded]
    words += ["colocated"] if way.server and not way.dedicated else []
    words += [f"{way.blocks} blocks"] if way.blocks else []
    words += [f"{way.link or machine.link} Gb/s"] if hosts > 1 else []
    return ", ".join(words)


def factor(checks: Sequence[Check], what: str, ranks: int, hosts: int) -> float:
    """Return measured over predicted seconds, as the epochs in ``checks`` tell; 1 without any."""
    model, _, *exchange = what.split(", ")
    total, weights = 0.0, PRIOR
    for check in checks:
        other_model, _, *other_exchange = check.what.split(", ")
        if check.hosts != hosts:
            continue
        weight = exp(-abs(log2(check.ranks / ranks)))
        weight *= 1.0 if other_model == model else OTHER_MODEL
        weight *= 1.0 if other_exchange == exchange else OTHER_EXCHANGE
        total += weight * log(check.measured_s / check.predicted_s)
        weights += weight
    return exp(total / weights)


def errors(checks: Sequence[Check]) -> list[float]:
    """Return the relative error of each epoch's prediction, corrected by the others."""
    found = []
    for number, check in enumerate(checks):
        others = [*checks[:number], *checks[number + 1 :]]
        found.append(check.predicted_s * factor(others, check.what, check.ranks, check.hosts) / check.measured_s - 1)
    return found


def told(checks: Sequence[Check]) -> str:
    """Return the errors of corrected predictions in words; each epoch is left out in its turn."""
    sizes = sorted(abs(error) for error in errors(checks))
    most = sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return f"the same, corrected by all others of these: median {median(sizes):.0%}, 95 % of them at most {most:.0%}"
