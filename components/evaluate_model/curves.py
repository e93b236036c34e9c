"""ROC and precision-recall curves and the threshold table, from histograms of scores."""

from typing import Any

import numpy as np

from components.evaluate_model.binary import confusion_values, edge_scores
from components.evaluate_model.tally import Floats, Integers

# Shares of the examples that the table's thresholds accept.
_ACCEPTED = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)


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
    """What happens at 0.5, at the threshold with the best F1, and where given shares are accepted.

    Rows {threshold, precision, recall, f1, false_positive_rate, accepted, best_f1} by threshold.
    """
    counts = negatives + positives
    if not counts.any():
        return []
    edges = edge_scores(len(counts))
    accepted = np.cumsum(counts[::-1])[::-1] / counts.sum()
    chosen = {len(counts) // 2}
    for share in _ACCEPTED:
        chosen.add(int(np.argmin(np.abs(accepted - share))))
    best = _best_f1(negatives, positives)
    if best is not None:
        chosen.add(best)
    return [
        {**_at_threshold(negatives, positives, first), "threshold": float(edges[first])}
        | {"accepted": float(accepted[first]), "best_f1": first == best}
        for first in sorted(chosen)
    ]


def _at_threshold(negatives: Floats, positives: Floats, first: int) -> dict[str, float | None]:
    """Metrics if the bins from `first` on are accepted."""
    false, true = float(negatives[first:].sum()), float(positives[first:].sum())
    num_negatives, num_positives = float(negatives.sum()), float(positives.sum())
    values = confusion_values(num_negatives - false, false, num_positives - true, true)
    return {
        "precision": values.get("precision"),
        "recall": values.get("recall"),
        "f1": values.get("f1"),
        "false_positive_rate": false / num_negatives if num_negatives else None,
    }


def _best_f1(negatives: Floats, positives: Floats) -> int | None:
    if not positives.any():
        return None
    bins = _occupied(negatives, positives)
    true = np.cumsum(positives[bins])
    accepted = true + np.cumsum(negatives[bins])
    return int(bins[int(np.argmax(2 * true / (accepted + positives.sum())))])


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
