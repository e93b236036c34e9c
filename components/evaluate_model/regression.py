"""Sums and metrics of regression models."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from components.contracts.dataset import Statistics
from components.contracts.errors import InputError
from components.evaluate_model import intervals
from components.evaluate_model.intervals import Interval
from components.evaluate_model.tally import (
    NUM_GROUPS,
    Batch,
    Floats,
    Values,
    finite_rows,
    group_sums,
)

# Absolute errors are counted in bins of equal ratio, 0.6 % wide, from 1e-6 to 1e6 times the
# label's standard deviation.
ERROR_BINS, ERROR_DECADES = 4608, 12.0
RESIDUAL_BINS, RESIDUAL_REACH = 800, 4.0
SHOWN_BINS = 50
PREDICTION_BINS = 2000
COUNT, ERROR, ERROR_SQUARED, ABSOLUTE, FOURTH, LABEL, LABEL_SQUARED = range(7)


class RegressionTally:
    """Sums of errors, and histograms of residuals."""

    def __init__(self, label: Statistics, slice_sizes: Sequence[int] = ()) -> None:
        """`label`: statistics of the label in training, which give the histograms their scale."""
        self.scale = math.sqrt(label.variance) or 1.0
        self._mean = label.mean
        self.state: dict[str, Floats] = {
            "sums": np.zeros((NUM_GROUPS, 7)),
            "errors": np.zeros((NUM_GROUPS, ERROR_BINS)),
            "residuals": np.zeros((1, RESIDUAL_BINS)),
            "predictions": np.zeros((1, PREDICTION_BINS, 4)),
        }
        self.sliced: tuple[dict[str, Floats], ...] = tuple(
            {"sums": np.zeros((size, 5))} for size in slice_sizes
        )
        self.num_examples = self.num_not_finite = 0

    def add(self, batch: Batch) -> None:
        """Count a batch. Raises InputError if a label is not finite."""
        if not np.isfinite(batch.labels).all():
            row = int(np.flatnonzero(~np.isfinite(batch.labels))[0])
            raise InputError(
                f"example {batch.first + row} of the split has the label {batch.labels[row]}: "
                "convert the data again without rows whose label is missing"
            )
        keep = finite_rows(batch.outputs)
        self.num_examples += len(keep)
        self.num_not_finite += int((~keep).sum())
        predicted = batch.outputs[keep].astype(np.float64)
        labels = batch.labels[keep].astype(np.float64)
        # Sums are taken about the training mean, or squares of large labels would lose digits.
        centred = labels - self._mean
        error = predicted - labels
        ones = np.ones(len(error))
        groups = (np.arange(len(keep))[keep] + batch.first) % NUM_GROUPS
        errors = (ones, error, error**2, np.abs(error), error**4)
        self.state["sums"] += group_sums(groups, NUM_GROUPS, *errors, centred, centred**2)
        self._add_histograms(groups, error, predicted, labels)
        for codes, sliced in zip(batch.codes, self.sliced, strict=True):
            sliced["sums"] += group_sums(codes[keep], len(sliced["sums"]), *errors)

    def _add_histograms(self, groups: Any, error: Any, predicted: Any, labels: Any) -> None:
        ratio = np.maximum(np.abs(error) / self.scale, 10 ** (-ERROR_DECADES / 2))
        position = (np.log10(ratio) / ERROR_DECADES + 0.5) * ERROR_BINS
        bins = np.minimum(position.astype(np.int64), ERROR_BINS - 1)
        size = NUM_GROUPS * ERROR_BINS
        counts = np.bincount(groups * ERROR_BINS + bins, minlength=size)
        self.state["errors"] += counts.reshape(NUM_GROUPS, ERROR_BINS)
        reach = RESIDUAL_REACH * self.scale
        self.state["residuals"][0] += np.histogram(
            np.clip(error, -reach, reach), RESIDUAL_BINS, (-reach, reach)
        )[0]
        position = ((predicted - self._mean) / self.scale + 10) * (PREDICTION_BINS / 20)
        bins = np.clip(position, 0, PREDICTION_BINS - 1).astype(np.int64)
        columns = (np.ones(len(labels)), predicted, labels, labels**2)
        self.state["predictions"][0] += group_sums(bins, PREDICTION_BINS, *columns)


def metric_values(state: Mapping[str, Floats], scale: float) -> Values:
    """Metrics from sums; `scale` is the tally's."""
    sums = state["sums"]
    count = float(sums[COUNT])
    if not count:
        return {}
    squared = float(sums[ERROR_SQUARED]) / count
    values = {
        "mae": float(sums[ABSOLUTE]) / count,
        "rmse": math.sqrt(squared),
        "bias": float(sums[ERROR]) / count,
        "median_absolute_error": error_quantile(state["errors"], 0.5, scale),
        "p90_absolute_error": error_quantile(state["errors"], 0.9, scale),
    }
    spread = _variance(sums)
    if spread > 0:
        values["r2"] = 1 - squared / spread
    return values


def baseline_values(state: Mapping[str, Floats]) -> Values:
    """Metrics of a model that predicts the split's mean for everyone."""
    spread = _variance(state["sums"])
    return {"rmse": math.sqrt(spread), "r2": 0.0} if spread > 0 else {}


def closed_form_intervals(state: Mapping[str, Floats], confidence: float) -> dict[str, Interval]:
    """Intervals of the metrics for which a formula is known."""
    sums = state["sums"]
    found = _mean_intervals(sums[: FOURTH + 1], confidence)
    return {name: interval for name, interval in found.items() if interval is not None}


def error_quantile(errors: Floats, share: float, scale: float) -> float:
    """Absolute error that `share` of the examples do not exceed, within 0.6 %."""
    position = int(np.searchsorted(np.cumsum(errors), share * errors.sum()))
    middle = (position + 0.5) / ERROR_BINS - 0.5
    return float(scale * 10 ** (middle * ERROR_DECADES))


def slice_values(sliced: Mapping[str, Floats], code: int) -> tuple[int, Values]:
    """Number of examples and metrics of one slice."""
    count, error, squared, absolute, _ = (float(value) for value in sliced["sums"][code])
    if not count:
        return 0, {}
    values = {"mae": absolute / count, "rmse": math.sqrt(squared / count), "bias": error / count}
    return int(count), values


def slice_intervals(
    sliced: Mapping[str, Floats], code: int, confidence: float
) -> dict[str, Interval]:
    """Intervals of a slice's metrics."""
    found = _mean_intervals(sliced["sums"][code], confidence)
    return {name: interval for name, interval in found.items() if interval is not None}


def residual_histogram(state: Mapping[str, Floats], scale: float) -> dict[str, Any]:
    """Residuals (prediction - label) as {edges, counts}; the outer bins hold what lies beyond."""
    counts = state["residuals"]
    share = np.cumsum(counts) / max(counts.sum(), 1)
    middle = RESIDUAL_BINS // 2
    # As far as all but 0.2 % of the residuals reach, to the same distance on both sides.
    reach = int(np.abs(np.searchsorted(share, [0.001, 0.999]) - middle).max()) + 1
    width = -(-2 * reach // SHOWN_BINS)
    reach = min(-(-reach // width) * width, middle)
    width = next(size for size in range(width, middle + 1) if 2 * reach % size == 0)
    inner = counts[middle - reach : middle + reach].copy()
    inner[0] += counts[: middle - reach].sum()
    inner[-1] += counts[middle + reach :].sum()
    unit = 2 * RESIDUAL_REACH * scale / RESIDUAL_BINS
    merged = inner.reshape(-1, width).sum(1)
    edges = (np.arange(len(merged) + 1) * width - reach) * unit
    return {"edges": edges.tolist(), "counts": merged.astype(int).tolist()}


def calibration_bins(predictions: Floats, confidence: float) -> list[dict[str, Any]]:
    """Mean label by bins of about equally many examples, by rising prediction."""
    counts = predictions[:, 0]
    total = counts.sum()
    if not total:
        return []
    part = np.minimum(((np.cumsum(counts) - counts / 2) * 12 / total).astype(np.int64), 11)
    rows = []
    for count, predicted, label, squares in group_sums(part, 12, *predictions.T):
        if count:
            interval = intervals.mean(label, squares, count, confidence)
            rows.append(
                {
                    "predicted": float(predicted / count),
                    "observed": float(label / count),
                    "low": interval[0] if interval else None,
                    "high": interval[1] if interval else None,
                    "num_examples": int(count),
                }
            )
    return rows


def _mean_intervals(sums: Floats, confidence: float) -> dict[str, Interval | None]:
    count, error, squared, absolute, fourth = (float(value) for value in sums)
    of_squares = intervals.mean(squared, fourth, count, confidence)
    return {
        "mae": intervals.mean(absolute, squared, count, confidence),
        "bias": intervals.mean(error, squared, count, confidence),
        "rmse": None
        if of_squares is None
        else (math.sqrt(max(of_squares[0], 0.0)), math.sqrt(of_squares[1])),
    }


def _variance(sums: Floats) -> float:
    count = float(sums[COUNT])
    if not count:
        return 0.0
    return float(sums[LABEL_SQUARED]) / count - (float(sums[LABEL]) / count) ** 2
