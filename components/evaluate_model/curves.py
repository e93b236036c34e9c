"""ROC and precision-recall curves and the threshold table, from histograms of scores."""

from typing import Any

import numpy as np

from components.evaluate_model.binary import confusion_values, edge_scores
from components.evaluate_model.tally import Floats, Integers

_TABLE = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.95,
    0.98,
    0.99,
)


def roc_curve(negatives: Floats, positives: Floats, *, most: int = 200) -> dict[str, list[float]]:
    """Points by falling threshold, {fpr, tpr, thresholds}; at most about `most` of them.

    The first threshold, which accepts nothing, is 1.0: an infinite one is not JSON.
    """
    if not negatives.any() or not positives.any():
        return {"fpr": [], "tpr": [], "thresholds": []}
    fpr, tpr, thresholds = _accepted_shares(negatives, positives)
    keep = _spread(fpr, tpr, most)
    return {
        "fpr": [0.0, *fpr[keep].tolist()],
        "tpr": [0.0, *tpr[keep].tolist()],
        "thresholds": [1.0, *thresholds[keep].tolist()],
    }


def precision_recall_curve(
    negatives: Floats, positives: Floats, *, most: int = 200
) -> dict[str, list[float]]:
    """Points by falling threshold, {recall, precision, thresholds}."""
    if not positives.any():
        return {"recall": [], "precision": [], "thresholds": []}
    bins = _occupied(negatives, positives)
    true = np.cumsum(positives[bins])
    precision = true / (true + np.cumsum(negatives[bins]))
    recall = true / positives.sum()
    keep = _spread(recall, precision, most)
    return {
        "recall": recall[keep].tolist(),
        "precision": precision[keep].tolist(),
        "thresholds": edge_scores(len(negatives))[bins][keep].tolist(),
    }


def threshold_table(negatives: Floats, positives: Floats) -> list[dict[str, Any]]:
    """What happens at a choice of thresholds, and at the one with the best F1."""
    total = float(negatives.sum() + positives.sum())
    if not total:
        return []
    edges = edge_scores(len(negatives))
    first = {float(threshold): int(np.searchsorted(edges, threshold)) for threshold in _TABLE}
    if positives.any():
        bins = _occupied(negatives, positives)
        true = np.cumsum(positives[bins])
        best = bins[
            int(np.argmax(2 * true / (true + np.cumsum(negatives[bins]) + positives.sum())))
        ]
        first[float(edges[best])] = int(best)
        best_threshold: float | None = float(edges[best])
    else:
        best_threshold = None
    rows = []
    for threshold, bin_number in sorted(first.items()):
        false, true_count = float(negatives[bin_number:].sum()), float(positives[bin_number:].sum())
        left = (float(negatives.sum()) - false, false, float(positives.sum()) - true_count)
        values = confusion_values(*left, true_count)
        num_negatives = float(negatives.sum())
        rows.append(
            {
                "threshold": threshold,
                "precision": values.get("precision"),
                "recall": values.get("recall"),
                "f1": values.get("f1"),
                "false_positive_rate": false / num_negatives if num_negatives else None,
                "accepted": (false + true_count) / total,
                "best_f1": threshold == best_threshold,
            }
        )
    return rows


def _occupied(negatives: Floats, positives: Floats) -> Integers:
    """Numbers of the bins that hold examples, by falling score."""
    return np.flatnonzero(negatives + positives)[::-1]


def _accepted_shares(negatives: Floats, positives: Floats) -> tuple[Floats, Floats, Floats]:
    bins = _occupied(negatives, positives)
    return (
        np.cumsum(negatives[bins]) / negatives.sum(),
        np.cumsum(positives[bins]) / positives.sum(),
        edge_scores(len(negatives))[bins],
    )


def _spread(x: Floats, y: Floats, most: int) -> Integers:
    """Indices of at most about `most` points, evenly spread along the curve, ends included."""
    if len(x) <= most:
        return np.arange(len(x))
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    wanted = np.linspace(0, length[-1], most)
    found = np.searchsorted(length, wanted).clip(0, len(x) - 1)
    return np.unique(np.concatenate([[0], found, [len(x) - 1]]))
