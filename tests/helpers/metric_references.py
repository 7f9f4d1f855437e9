"""Metrics sample by sample, as their definitions say; slow, and independent of psframe's."""

import math


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
