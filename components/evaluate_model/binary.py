"""Counts and metrics of binary classifiers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.contracts.errors import InputError
from components.evaluate_model import intervals
from components.evaluate_model.intervals import Interval
from components.evaluate_model.tally import (
    NUM_GROUPS,
    Batch,
    Floats,
    Integers,
    Values,
    finite_rows,
    group_sums,
)

# Scores are counted in bins of equal width on the logit scale, where a classifier's scores spread
# evenly. Two scores in one bin count as tied; a bin is 0.002 wide for all examples together.
MAX_LOGIT = 16.0
BINS, SLICE_BINS = 16384, 1024
# Columns of the sums.
LOSS, LOSS_SQUARED, BRIER, BRIER_SQUARED = range(4)
_SLICE_SUM_PREDICTED, _SLICE_SUM_LOSS = range(2)


class BinaryTally:
    """Histograms of scores by label, and sums of losses."""

    def __init__(self, slice_sizes: Sequence[int] = ()) -> None:
        self.state: dict[str, Floats] = {
            "counts": np.zeros((NUM_GROUPS, 2, BINS)),
            "sums": np.zeros((NUM_GROUPS, 4)),
        }
        self.sliced: tuple[dict[str, Floats], ...] = tuple(
            {"counts": np.zeros((size, 2, SLICE_BINS)), "sums": np.zeros((size, 2))}
            for size in slice_sizes
        )
        self.num_examples = self.num_not_finite = 0

    def add(self, batch: Batch) -> None:
        """Count a batch. Raises InputError if the outputs are not probabilities."""
        keep = finite_rows(batch.outputs)
        self.num_examples += len(keep)
        self.num_not_finite += int((~keep).sum())
        scores = _probabilities(batch.outputs[keep])
        labels = batch.labels[keep].astype(np.int64)
        bins = score_bins(scores)
        chosen = np.where(labels == 1, scores, 1 - scores)
        loss = -np.log(np.maximum(chosen, 1e-7))  # Keras' epsilon, so that losses agree
        brier = (scores - labels) ** 2
        groups = (np.arange(len(keep))[keep] + batch.first) % NUM_GROUPS
        self.state["counts"] += _histogram(groups * 2 + labels, bins, (NUM_GROUPS, 2, BINS))
        self.state["sums"] += group_sums(groups, NUM_GROUPS, loss, loss**2, brier, brier**2)
        slice_bins = bins // (BINS // SLICE_BINS)
        for codes, sliced in zip(batch.codes, self.sliced, strict=True):
            size, kept = len(sliced["sums"]), codes[keep]
            shape = (size, 2, SLICE_BINS)
            sliced["counts"] += _histogram(kept * 2 + labels, slice_bins, shape)
            sliced["sums"] += group_sums(kept, size, scores, loss)


def score_bins(scores: Floats) -> Integers:
    """Bin numbers of probabilities; 0.5 is the lower edge of bin BINS / 2."""
    with np.errstate(divide="ignore"):
        logits = np.log(scores) - np.log1p(-scores)
    scaled = (np.clip(logits, -MAX_LOGIT, MAX_LOGIT) + MAX_LOGIT) * (BINS / (2 * MAX_LOGIT))
    # log and log1p round differently next to 0.5, where accuracy and confusion matrix are cut.
    found = np.minimum(scaled.astype(np.int64), BINS - 1)
    half = BINS // 2
    return np.asarray(np.where(scores >= 0.5, np.maximum(found, half), np.minimum(found, half - 1)))


def bin_scores(num_bins: int) -> Floats:
    """Probability in the middle of each bin, shape [num_bins]."""
    width = 2 * MAX_LOGIT / num_bins
    logits = (np.arange(num_bins) + 0.5) * width - MAX_LOGIT
    return np.asarray(1 / (1 + np.exp(-logits)))


def edge_scores(num_bins: int) -> Floats:
    """Lowest probability of each bin, shape [num_bins]."""
    logits = np.arange(num_bins) * (2 * MAX_LOGIT / num_bins) - MAX_LOGIT
    return np.asarray(1 / (1 + np.exp(-logits)))


def metric_values(state: Mapping[str, Floats]) -> Values:
    """Metrics from counts [2, bins] and sums; undefined ones are left out."""
    negatives, positives = state["counts"]
    values = rank_values(negatives, positives)
    count = float(negatives.sum() + positives.sum())
    if not count:
        return values
    values |= confusion_values(*confusion(negatives, positives))
    values["log_loss"] = float(state["sums"][LOSS]) / count
    values["brier"] = float(state["sums"][BRIER]) / count
    bins = calibration_bins(negatives, positives)
    values["calibration_error"] = float(
        sum(row["num_examples"] * abs(row["predicted"] - row["observed"]) for row in bins) / count
    )
    return values


def rank_values(negatives: Floats, positives: Floats) -> Values:
    """`auc` and `average_precision`, if both classes occur."""
    num_negatives, num_positives = float(negatives.sum()), float(positives.sum())
    if not num_negatives or not num_positives:
        return {}
    below = np.cumsum(negatives) - negatives / 2
    true = np.cumsum(positives[::-1])
    accepted = true + np.cumsum(negatives[::-1])
    precision = np.divide(true, accepted, out=np.zeros_like(true), where=accepted > 0)
    return {
        "auc": float(positives @ below) / num_negatives / num_positives,
        "average_precision": float(positives[::-1] @ precision) / num_positives,
    }


def confusion(negatives: Floats, positives: Floats) -> tuple[float, float, float, float]:
    """True negatives, false positives, false negatives, true positives at a score of 0.5."""
    half = len(negatives) // 2
    return (
        float(negatives[:half].sum()),
        float(negatives[half:].sum()),
        float(positives[:half].sum()),
        float(positives[half:].sum()),
    )


def confusion_values(
    true_negatives: float, false_positives: float, false_negatives: float, true_positives: float
) -> Values:
    """Metrics of a confusion matrix; undefined ones are left out."""
    count = true_negatives + false_positives + false_negatives + true_positives
    values = {"accuracy": (true_negatives + true_positives) / count}
    if true_positives + false_positives:
        values["precision"] = true_positives / (true_positives + false_positives)
    if true_positives + false_negatives:
        values["recall"] = true_positives / (true_positives + false_negatives)
    union = true_positives + false_positives + false_negatives
    if union:
        values["f1"] = 2 * true_positives / (union + true_positives)
    return values


def baseline_values(state: Mapping[str, Floats]) -> Values:
    """Metrics of a model that predicts the positives' share for everyone."""
    negatives, positives = (float(row.sum()) for row in state["counts"])
    if not negatives or not positives:
        return {}
    share = positives / (negatives + positives)
    return {
        "auc": 0.5,
        "average_precision": share,
        "accuracy": max(share, 1 - share),
        "log_loss": -share * math.log(share) - (1 - share) * math.log(1 - share),
        "brier": share * (1 - share),
    }


def closed_form_intervals(state: Mapping[str, Floats], confidence: float) -> dict[str, Interval]:
    """Intervals of the metrics for which a formula is known."""
    negatives, positives = state["counts"]
    sums = state["sums"]
    count = float(negatives.sum() + positives.sum())
    found = {
        "auc": intervals.area_under_roc(negatives, positives, confidence),
        "log_loss": intervals.mean(sums[LOSS], sums[LOSS_SQUARED], count, confidence),
        "brier": intervals.mean(sums[BRIER], sums[BRIER_SQUARED], count, confidence),
        **confusion_intervals(*confusion(negatives, positives), confidence),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def confusion_intervals(
    true_negatives: float,
    false_positives: float,
    false_negatives: float,
    true_positives: float,
    confidence: float,
) -> dict[str, Interval | None]:
    """Wilson intervals of what is a proportion."""
    right = true_negatives + true_positives
    count = right + false_positives + false_negatives
    # F1 = 2J / (1 + J), where J, the Jaccard index, is a proportion.
    jaccard = intervals.wilson(
        true_positives, true_positives + false_positives + false_negatives, confidence
    )
    return {
        "accuracy": intervals.wilson(right, count, confidence),
        "precision": intervals.wilson(true_positives, true_positives + false_positives, confidence),
        "recall": intervals.wilson(true_positives, true_positives + false_negatives, confidence),
        "f1": None
        if jaccard is None
        else (2 * jaccard[0] / (1 + jaccard[0]), 2 * jaccard[1] / (1 + jaccard[1])),
    }


def slice_values(sliced: Mapping[str, Floats], code: int) -> tuple[int, Values]:
    """Number of examples and metrics of one slice."""
    negatives, positives = sliced["counts"][code]
    count = float(negatives.sum() + positives.sum())
    if not count:
        return 0, {}
    predicted, loss = sliced["sums"][code]
    values = rank_values(negatives, positives)
    values |= confusion_values(*confusion(negatives, positives))
    values["log_loss"] = float(loss) / count
    values["predicted_rate"] = float(predicted) / count
    values["observed_rate"] = float(positives.sum()) / count
    return int(count), values


def slice_intervals(
    sliced: Mapping[str, Floats], code: int, confidence: float
) -> dict[str, Interval]:
    """Intervals of a slice's metrics."""
    negatives, positives = sliced["counts"][code]
    num_positives = float(positives.sum())
    count = float(negatives.sum()) + num_positives
    found = {
        "auc": intervals.area_under_roc(negatives, positives, confidence),
        "observed_rate": intervals.wilson(num_positives, count, confidence),
        **confusion_intervals(*confusion(negatives, positives), confidence),
    }
    return {name: interval for name, interval in found.items() if interval is not None}


def calibration_bins(
    negatives: Floats, positives: Floats, *, most: int = 12
) -> list[dict[str, Any]]:
    """Bins of about equally many examples, by rising score, without their intervals.

    The mean difference between their shares and scores is the adaptive calibration error (Nixon et
    al. 2019, arXiv:1904.01685).
    """
    counts = negatives + positives
    total = counts.sum()
    if not total:
        return []
    ends = np.cumsum(counts)
    part = np.minimum(((ends - counts / 2) * most / total).astype(np.int64), most - 1)
    scores = bin_scores(len(counts))
    sums = group_sums(part, most, counts, counts * scores, positives)
    return [
        {
            "predicted": float(predicted / count),
            "observed": float(positive / count),
            "num_examples": int(count),
        }
        for count, predicted, positive in sums
        if count
    ]


def score_histogram(negatives: Floats, positives: Floats, *, bins: int = 40) -> dict[str, Any]:
    """Counts by probability in bins of equal width, {edges, negatives, positives}."""
    part = np.minimum((bin_scores(len(negatives)) * bins).astype(np.int64), bins - 1)
    sums = group_sums(part, bins, negatives, positives).astype(int)
    return {
        "edges": np.linspace(0, 1, bins + 1).tolist(),
        "negatives": sums[:, 0].tolist(),
        "positives": sums[:, 1].tolist(),
    }


def _histogram(rows: Integers, bins: Integers, shape: tuple[int, int, int]) -> Floats:
    size = int(np.prod(shape))
    return np.bincount(rows * shape[2] + bins, minlength=size).reshape(shape).astype(np.float64)


def _probabilities(outputs: NDArray[np.float32]) -> Floats:
    scores = outputs.astype(np.float64)
    if len(scores) and (scores.min() < -1e-6 or scores.max() > 1 + 1e-6):
        raise InputError(
            f"the model's outputs lie between {scores.min():.4g} and {scores.max():.4g}: a binary "
            "classifier must put out probabilities. End build_model's network with a sigmoid, and "
            "take from_logits=True out of the loss"
        )
    return np.clip(scores, 0.0, 1.0)
