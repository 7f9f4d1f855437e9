"""Metrics sample by sample, as their definitions say, and those of scikit-learn; slow, and independent of psframe's."""

import math
import warnings


def probabilities(logits):
    rows = []
    for row in logits.tolist():
        powers = [math.exp(z - max(row)) for z in row]
        rows.append([power / sum(powers) for power in powers])
    return rows


def confusion(logits, labels):
    n = logits.shape[1]
    counts = [[0] * n for _ in range(n)]
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        counts[label][row.index(max(row))] += 1
    return counts


def top_k(logits, labels, k):
    """Of equal logits those of higher classes come first."""
    hits = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda c: (row[c], c), reverse=True)
        hits += label in order[:k]
    return hits / len(labels)


def per_class(logits, labels):
    """Return lists of precision, recall and f1 by class, and how many samples have and get each class."""
    counts = confusion(logits, labels)
    classes = range(len(counts))
    labelled, predicted = [sum(counts[c]) for c in classes], [sum(row[c] for row in counts) for c in classes]
    precision = [counts[c][c] / predicted[c] if predicted[c] else 0.0 for c in classes]
    recall = [counts[c][c] / labelled[c] if labelled[c] else 0.0 for c in classes]
    f1 = [2 * p * r / (p + r) if p + r else 0.0 for p, r in zip(precision, recall, strict=True)]
    return {"precision": precision, "recall": recall, "f1": f1}, labelled, predicted


def averages(logits, labels):
    """Return every precision, recall and f1 by the name of its metric."""
    by_name, labelled, predicted = per_class(logits, labels)
    values = dict(by_name)
    for name, ratios in by_name.items():
        occurring = [ratio for ratio, a, b in zip(ratios, labelled, predicted, strict=True) if a + b]
        values[f"{name}_macro"] = sum(occurring) / len(occurring)
        values[f"{name}_weighted"] = sum(r * n for r, n in zip(ratios, labelled, strict=True)) / len(labels)
    return values


def log_loss(logits, labels):
    losses = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        losses.append(math.log(math.fsum(math.exp(z - max(row)) for z in row)) + max(row) - row[label])
    return math.fsum(losses) / len(labels)


def ece(logits, labels, bins):
    members = {}
    for row, shares, label in zip(logits.tolist(), probabilities(logits), labels.tolist(), strict=True):
        confidence = max(shares)
        number = next(b for b in range(bins) if confidence <= (b + 1) / bins or b == bins - 1)
        members.setdefault(number, []).append((row.index(max(row)) == label, confidence))
    errors = []
    for of_bin in members.values():
        accuracy, mean = (sum(column) / len(of_bin) for column in zip(*of_bin, strict=True))
        errors.append(len(of_bin) / len(labels) * abs(accuracy - mean))
    return math.fsum(errors)


def everything(logits, labels, k=3, bins=15):
    """Return all of these by their labels in a record."""
    return {
        f"top_{k}": top_k(logits, labels, k),
        "confusion": confusion(logits, labels),
        "log_loss": log_loss(logits, labels),
        "ece": ece(logits, labels, bins),
        **averages(logits, labels),
    }


def of_scikit_learn(logits, labels, k=3):
    """Return by label what scikit-learn has; {} if it is not installed."""
    try:
        from sklearn import metrics as skl
    except ImportError:
        return {}
    n_classes, predicted = logits.shape[1], logits.argmax(axis=1)
    classes, shares = list(range(n_classes)), probabilities(logits)
    values = {"confusion": skl.confusion_matrix(labels, predicted, labels=classes).tolist()}
    for name in ("precision", "recall", "f1"):
        score = getattr(skl, f"{name}_score")
        values[name] = score(labels, predicted, labels=classes, average=None, zero_division=0).tolist()
        for average in ("macro", "weighted"):
            values[f"{name}_{average}"] = score(labels, predicted, average=average, zero_division=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that no sample has
        if n_classes > 2:  # it takes the scores of two classes as one column
            values[f"top_{k}"] = skl.top_k_accuracy_score(labels, logits, k=k, labels=classes)
        if n_classes > 1 and all(row[c] > 1e-15 for row, c in zip(shares, labels, strict=True)):  # it has a bound there
            values["log_loss"] = skl.log_loss(labels, shares, labels=classes)
    return values
