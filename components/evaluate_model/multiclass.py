"""Counts and metrics of multi-class classifiers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.contracts.errors import InputError
from components.evaluate_model import intervals
from components.evaluate_model.binary import BINS, rank_values, score_bins
from components.evaluate_model.intervals import Interval
from components.evaluate_model.tally import (
    NUM_GROUPS,
    Batch,
    Floats,
    Values,
    finite_rows,
    group_sums,
)

# One-vs-rest curves cost a histogram a class, so they stop at so many classes.
MOST_CURVES = 50
# A confusion matrix per group up to so many classes; above, one for all groups, which leaves the
# metrics made from it without intervals.
MOST_GROUPED = 100
CLASS_BINS = 2048
CONFIDENCE_BINS = 200
TOP = 3
LOSS, LOSS_SQUARED, BRIER, BRIER_SQUARED, CORRECT, TOP_CORRECT, COUNT = range(7)


class MulticlassTally:
    """Confusion matrix, one-vs-rest histograms, and sums of losses."""

    def __init__(self, num_classes: int, slice_sizes: Sequence[int] = ()) -> None:
        self._num_classes = num_classes
        groups = NUM_GROUPS if num_classes <= MOST_GROUPED else 1
        self.state: dict[str, Floats] = {
            "confusion": np.zeros((groups, num_classes, num_classes)),
            "sums": np.zeros((groups, 7)),
            "confidence": np.zeros((groups, CONFIDENCE_BINS, 3)),
        }
        if num_classes <= MOST_CURVES:
            self.state["curves"] = np.zeros((1, num_classes, 2, CLASS_BINS))
        self.sliced: tuple[dict[str, Floats], ...] = tuple(
            {"sums": np.zeros((size, 4))} for size in slice_sizes
        )
        self.num_examples = self.num_not_finite = 0

    def add(self, batch: Batch) -> None:
        """Count a batch. Raises InputError if the outputs are not distributions."""
        keep = finite_rows(batch.outputs)
        self.num_examples += len(keep)
        self.num_not_finite += int((~keep).sum())
        scores = _distributions(batch.outputs[keep], self._num_classes)
        labels = batch.labels[keep].astype(np.int64)
        rows = np.arange(len(labels))
        groups = (np.arange(len(keep))[keep] + batch.first) % len(self.state["sums"])
        predicted = scores.argmax(1)
        chosen = scores[rows, labels]
        loss = -np.log(np.maximum(chosen, 1e-7))
        brier = (scores**2).sum(1) - 2 * chosen + 1
        correct = (predicted == labels).astype(np.float64)
        better = (scores > chosen[:, None]).sum(1)
        top = (better < TOP).astype(np.float64)
        columns = (loss, loss**2, brier, brier**2, correct, top, np.ones(len(rows)))
        self.state["sums"] += group_sums(groups, len(self.state["sums"]), *columns)
        self._add_confusion(groups, labels, predicted)
        self._add_confidence(groups, scores[rows, predicted], correct)
        if "curves" in self.state:
            self._add_curves(labels, scores)
        for codes, sliced in zip(batch.codes, self.sliced, strict=True):
            sliced["sums"] += group_sums(
                codes[keep], len(sliced["sums"]), np.ones(len(rows)), correct, loss, loss**2
            )

    def _add_confusion(self, groups: Any, labels: Any, predicted: Any) -> None:
        shape = self.state["confusion"].shape
        index = (groups * shape[1] + labels) * shape[2] + predicted
        size = int(np.prod(shape))
        self.state["confusion"] += np.bincount(index, minlength=size).reshape(shape)

    def _add_confidence(self, groups: Any, confidence: Any, correct: Any) -> None:
        shape = self.state["confidence"].shape
        bins = np.minimum((confidence * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
        sums = group_sums(
            groups * CONFIDENCE_BINS + bins,
            shape[0] * CONFIDENCE_BINS,
            np.ones(len(bins)),
            confidence,
            correct,
        )
        self.state["confidence"] += sums.reshape(shape)

    def _add_curves(self, labels: Any, scores: Any) -> None:
        bins = score_bins(scores) // (BINS // CLASS_BINS)
        classes = np.arange(self._num_classes)
        positive = labels[:, None] == classes
        index = (classes * 2 + positive) * CLASS_BINS + bins
        shape = self.state["curves"].shape
        size = int(np.prod(shape))
        self.state["curves"] += np.bincount(index.ravel(), minlength=size).reshape(shape)


def metric_values(state: Mapping[str, Floats]) -> Values:
    """Metrics from counts and sums; undefined ones are left out."""
    sums = state["sums"]
    count = float(sums[COUNT])
    if not count:
        return {}
    values = {
        "accuracy": float(sums[CORRECT]) / count,
        "log_loss": float(sums[LOSS]) / count,
        "brier": float(sums[BRIER]) / count,
    }
    if len(state["confusion"]) > TOP:
        values[f"top_{TOP}_accuracy"] = float(sums[TOP_CORRECT]) / count
    by_class = class_values(state["confusion"])
    for name in ("precision", "recall", "f1"):
        found = by_class[name][by_class["present"] > 0]
        values[f"macro_{name}"] = float(found.mean())
    values["balanced_accuracy"] = values["macro_recall"]
    bins = calibration_bins(state["confidence"])
    values["calibration_error"] = float(
        sum(row["num_examples"] * abs(row["predicted"] - row["observed"]) for row in bins) / count
    )
    return values


def curve_values(curves: Floats) -> Values:
    """`macro_auc` over the classes that occur, from histograms [classes, 2, bins]."""
    areas = [rank_values(*counts).get("auc") for counts in curves]
    known = [area for area in areas if area is not None]
    return {"macro_auc": float(np.mean(known))} if known else {}


def class_values(matrix: Floats) -> dict[str, Floats]:
    """Precision, recall, F1 by class, 0 where undefined; `present`: examples of the class."""
    hits = np.diag(matrix)
    present, predicted = matrix.sum(1), matrix.sum(0)

    def ratio(top: Floats, bottom: Floats) -> Floats:
        return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)

    return {
        "present": present,
        "precision": ratio(hits, predicted),
        "recall": ratio(hits, present),
        "f1": ratio(2 * hits, present + predicted),
    }


def baseline_values(state: Mapping[str, Floats]) -> Values:
    """Metrics of a model that predicts the classes' shares for everyone."""
    present = state["confusion"].sum(1)
    shares = present[present > 0] / present.sum()
    if not len(shares):
        return {}
    return {
        "accuracy": float(shares.max()),
        f"top_{TOP}_accuracy": float(np.sort(shares)[-TOP:].sum()),
        "log_loss": float(-(shares * np.log(shares)).sum()),
        "brier": float(1 - (shares**2).sum()),
        "macro_auc": 0.5,
        "balanced_accuracy": 1 / len(shares),
        "macro_recall": 1 / len(shares),
    }


def closed_form_intervals(state: Mapping[str, Floats], confidence: float) -> dict[str, Interval]:
    """Intervals of the metrics for which a formula is known."""
    sums = state["sums"]
    count = float(sums[COUNT])
    found = {
        "accuracy": intervals.wilson(float(sums[CORRECT]), count, confidence),
        f"top_{TOP}_accuracy": intervals.wilson(float(sums[TOP_CORRECT]), count, confidence),
        "log_loss": intervals.mean(sums[LOSS], sums[LOSS_SQUARED], count, confidence),
        "brier": intervals.mean(sums[BRIER], sums[BRIER_SQUARED], count, confidence),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def slice_values(sliced: Mapping[str, Floats], code: int) -> tuple[int, Values]:
    """Number of examples and metrics of one slice."""
    count, correct, loss, _ = (float(value) for value in sliced["sums"][code])
    if not count:
        return 0, {}
    return int(count), {"accuracy": correct / count, "log_loss": loss / count}


def slice_intervals(
    sliced: Mapping[str, Floats], code: int, confidence: float
) -> dict[str, Interval]:
    """Intervals of a slice's metrics."""
    count, correct, loss, squares = (float(value) for value in sliced["sums"][code])
    found = {
        "accuracy": intervals.wilson(correct, count, confidence),
        "log_loss": intervals.mean(loss, squares, count, confidence),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def calibration_bins(confidence: Floats, *, most: int = 12) -> list[dict[str, Any]]:
    """Bins of about equally many examples, by rising score of the predicted class.

    Args:
        confidence: counts, sums of scores, right predictions by bin, shape [bins, 3].
        most: bins to make.
    """
    counts = confidence[:, 0]
    total = counts.sum()
    if not total:
        return []
    middle = np.cumsum(counts) - counts / 2
    part = np.minimum((middle * most / total).astype(np.int64), most - 1)
    return [
        {
            "predicted": float(predicted / count),
            "observed": float(correct / count),
            "num_examples": int(count),
        }
        for count, predicted, correct in group_sums(part, most, *confidence.T)
        if count
    ]


def _distributions(outputs: NDArray[np.float32], num_classes: int) -> Floats:
    scores = outputs.astype(np.float64)
    if scores.ndim != 2 or scores.shape[1] != num_classes:
        raise InputError(
            f"the model's output has shape [batch, {', '.join(map(str, scores.shape[1:]))}], the "
            f"label has {num_classes} classes: end build_model's network with that many units"
        )
    if len(scores):
        total = scores.sum(1)
        # Half precision sums to 1 within two digits only.
        if scores.min() < -1e-6 or np.abs(total - 1).max() > 0.02:
            raise InputError(
                f"the model's outputs sum to {total[np.abs(total - 1).argmax()]:.4g} over the "
                "classes: they must be probabilities. End build_model's network with a softmax, "
                "and take from_logits=True out of the loss"
            )
    return np.clip(scores, 0.0, 1.0)
