"""Metrics of a test set: those of a config (:func:`choose`, :func:`make`), and those of arrays (:func:`compute`)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psframe.config import registry
from psframe.config.registry import Choice, Table
from psframe.errors import UserError, raised
from psframe.nn.metrics.base import Metric
from psframe.nn.metrics.meter import Meter, Metrics, conclude

TABLE: Table = {
    "top_k": "psframe.nn.metrics.top_k:TopK",
    "confusion": "psframe.nn.metrics.confusion:Confusion",
    "precision": "psframe.nn.metrics.per_class:Precision",
    "precision_macro": "psframe.nn.metrics.per_class:PrecisionMacro",
    "precision_weighted": "psframe.nn.metrics.per_class:PrecisionWeighted",
    "recall": "psframe.nn.metrics.per_class:Recall",
    "recall_macro": "psframe.nn.metrics.per_class:RecallMacro",
    "recall_weighted": "psframe.nn.metrics.per_class:RecallWeighted",
    "f1": "psframe.nn.metrics.per_class:F1",
    "f1_macro": "psframe.nn.metrics.per_class:F1Macro",
    "f1_weighted": "psframe.nn.metrics.per_class:F1Weighted",
    "log_loss": "psframe.nn.metrics.probability:LogLoss",
    "ece": "psframe.nn.metrics.probability:ECE",
}

MAX_LABEL = 100  # characters
PART = 4096  # samples that :func:`values` takes at once

Spec = str | Mapping[str, Any]  #: a name, or a name with keys


def choose(specs: Sequence[Spec], section: str = "metrics") -> list[Choice]:
    """Return the metrics that are named, each with validated keys.

    Parameters
    ----------
    specs : sequence of str or dict
        Names, or names with keys, as ``record.metrics`` has them.
    section : str
        Name of the list in messages.

    Raises
    ------
    UserError
        Unknown name or key, or a value of the wrong type.
    """
    choices = []
    for number, spec in enumerate(registry.convert(section, specs, list[str | dict[str, Any]])):
        at = f"{section}[{number}]"
        choices.append(registry.bind(at, TABLE, _spelled_out(at, spec)).taking(1))
    return choices


def _spelled_out(section: str, spec: Spec) -> dict[str, Any]:
    """Return a metric as name and keys: ``top_3`` is ``{name: top_k, k: 3}``."""
    keys = {"name": spec} if isinstance(spec, str) else dict(spec)
    top = re.fullmatch(r"top_([0-9]{1,9})", str(keys.get("name")))
    if top and "k" in keys:
        raise UserError(
            f"{section}: {keys['name']} has its k in its name, got k={keys['k']!r}, too; give {{name: top_k, k: ...}}"
        )
    return {**keys, "name": "top_k", "k": int(top[1])} if top else keys


def make(choices: Sequence[Choice], n_classes: int) -> dict[str, Metric]:
    """Return the metrics for a network with ``n_classes`` classes, by the label that a record has.

    Each is tried on a few samples, so that a mistake is told before training.

    Raises
    ------
    UserError
        A metric cannot be made for so many classes, fails, or has the label of another one.
    """
    metrics: dict[str, Metric] = {}
    for choice in choices:
        metric = _made(choice, n_classes)
        label = getattr(metric, "label", "") or choice.name
        if not isinstance(label, str) or not label.isprintable() or len(label) > MAX_LABEL:
            raise UserError(
                f"metric {choice.name!r} must have a label of at most {MAX_LABEL} printable characters, got {label!r}; "
                "mend it"
            )
        if label in metrics:
            raise UserError(
                f"metrics must have different labels, got {label!r} twice; leave one out, or give one of your own "
                "another label"
            )
        metrics[label] = metric
    _try(metrics, n_classes)
    return metrics


def _made(choice: Choice, n_classes: int) -> Metric:
    try:
        metric = choice(n_classes)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if choice.name in TABLE:
            raise
        raise UserError(
            f"metric {choice.name!r} must be made for {n_classes} classes, got {raised(error, choice.name)}; mend it"
        ) from None
    if not all(callable(getattr(metric, name, None)) for name in ("sums", "finish")):
        raise UserError(
            f"metric {choice.name!r} must have sums and finish, got {metric!r}; see psframe.nn.metrics.base.Metric"
        )
    return metric


def _try(metrics: Metrics, n_classes: int) -> None:
    """Raise UserError if a metric fails on samples of random logits, as two ranks would have them."""
    random, sums = np.random.Generator(np.random.PCG64(1)), []
    for of_rank in ((1, 4), (3,)):
        meter = Meter(metrics)
        for n in of_rank:
            meter.add(random.standard_normal((n, n_classes), np.float32), random.integers(0, n_classes, n))
        sums.append(meter.take())
    _, complaint = conclude(metrics, sums)
    if complaint:
        raise UserError(complaint)


def compute(specs: Sequence[Spec], logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return metrics of arrays, in one process.

    Parameters
    ----------
    specs : sequence of str or dict
        As ``record.metrics`` has them: ``["top_5", {"name": "ece", "bins": 10}]``.
    logits : ndarray, shape (n, n_classes)
        Outputs of a network for at least one sample; computed with as float32.
    labels : ndarray of integers, shape (n,)

    Returns
    -------
    dict
        Values by label, as a record has them.

    Raises
    ------
    UserError
        An unknown or failing metric, arrays of other shapes, or a label that is no class.
    """
    logits, labels = np.asarray(logits, np.float32), np.asarray(labels)
    if logits.ndim != 2 or not logits.size or labels.shape != logits.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(
            "metrics must have logits (n, n_classes) and n integer labels, n >= 1, got shapes "
            f"{logits.shape} and {labels.shape} of {labels.dtype}; give a row of logits for each label"
        )
    n_classes = logits.shape[1]
    if labels.min() < 0 or labels.max() >= n_classes:
        wrong = labels[(labels < 0) | (labels >= n_classes)][0]
        raise UserError(f"labels must lie in [0, {n_classes}), got {wrong}; give logits of all classes")
    return values(make(choose(specs), n_classes), logits, labels.astype(np.int64))


def values(metrics: Metrics, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the values of metrics over arrays, by label; UserError if a metric fails.

    Parameters
    ----------
    metrics : dict of str to Metric
    logits : ndarray of float32, shape (n, n_classes)
    labels : ndarray of int64, shape (n,)
        Classes, 0 to n_classes - 1; n >= 1.
    """
    meter = Meter(metrics)
    for begin in range(0, len(labels), PART):
        part = slice(begin, begin + PART)
        meter.add(logits[part], labels[part])
    found, complaint = conclude(metrics, [meter.take()])
    if complaint:
        raise UserError(complaint)
    return found
