"""From a tally to metrics with intervals, slices, curves: the part that knows the three tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from components.contracts.dataset import Schema
from components.contracts.report import Metric, Slice
from components.evaluate_model import binary, intervals, multiclass, regression
from components.evaluate_model.curves import precision_recall_curve, roc_curve, threshold_table
from components.evaluate_model.intervals import Interval
from components.evaluate_model.slices import SliceColumn
from components.evaluate_model.tally import Floats, Tally, Values

_TASKS: dict[str, Any] = {
    "binary": binary,
    "multiclass": multiclass,
    "regression": regression,
}
# Metrics that cannot leave [0, 1], whatever the normal approximation says.
_SHARES = frozenset({"auc", "average_precision", "accuracy", "f1", "brier", "calibration_error"})


def make_tally(schema: Schema, slices: Sequence[SliceColumn] = ()) -> Tally:
    """An empty tally for the schema's task."""
    sizes = [len(column.values) for column in slices]
    if schema.task == "binary":
        return binary.BinaryTally(sizes)
    if schema.task == "multiclass":
        return multiclass.MulticlassTally(len(schema.classes), sizes)
    return regression.RegressionTally(schema.label.statistics, sizes)


class Measured:
    """Everything a report says of one model's tally."""

    def __init__(self, schema: Schema, tally: Tally, confidence: float) -> None:
        self._schema, self._tally, self._confidence = schema, tally, confidence
        self._task = _TASKS[schema.task]
        self._total = {name: array.sum(0) for name, array in tally.state.items()}
        self.values = self._values_of(self._total)
        if "curves" in tally.state and schema.task == "multiclass":
            self.values |= multiclass.curve_values(self._total["curves"])

    def metrics(self) -> dict[str, Metric]:
        """Metrics with intervals and baselines."""
        found = self.intervals()
        baseline = self._task.baseline_values(self._total)
        return {
            name: _metric(name, value, found.get(name), baseline.get(name))
            for name, value in self.values.items()
        }

    def intervals(self) -> dict[str, Interval]:
        """Closed forms where they are known, the jackknife elsewhere."""
        grouped = {
            name: _coarser(array) if name == "counts" else array
            for name, array in self._tally.state.items()
            if len(array) > 1
        }
        fixed = {name: array[0] for name, array in self._tally.state.items() if len(array) == 1}
        found = {}
        if "sums" in grouped:
            found = intervals.jackknife(
                grouped, lambda state: self._values_of({**state, **fixed}), self._confidence
            )
        closed: dict[str, Interval] = self._task.closed_form_intervals(
            self._total, self._confidence
        )
        return found | closed

    def change_intervals(self, other: "Measured") -> dict[str, Interval]:
        """Paired intervals of this model's metrics less the other's, on the same examples."""
        mine, theirs = self._tally.state, other._tally.state
        joined = {
            f"{side}:{name}": _coarser(array) if name == "counts" else array
            for side, state in (("a", mine), ("b", theirs))
            for name, array in state.items()
        }
        if any(len(array) == 1 for name, array in joined.items() if not _is_shared(name)):
            return {}
        fixed = {name: array[0] for name, array in joined.items() if len(array) == 1}
        grouped = {name: array for name, array in joined.items() if len(array) > 1}

        def difference(state: Mapping[str, Floats]) -> Values:
            state = {**state, **fixed}
            first = self._values_of({name: state[f"a:{name}"] for name in mine})
            second = self._values_of({name: state[f"b:{name}"] for name in theirs})
            return {name: first[name] - second[name] for name in first if name in second}

        return intervals.jackknife(grouped, difference, self._confidence)

    def slices(self, columns: Sequence[SliceColumn]) -> tuple[Slice, ...]:
        """One row a value that occurs."""
        rows = []
        for column, sliced in zip(columns, self._tally.sliced, strict=True):
            for code, value in enumerate(column.values):
                count, values = self._task.slice_values(sliced, code)
                if not count:
                    continue
                found = self._task.slice_intervals(sliced, code, self._confidence)
                metrics = {
                    name: _metric(name, number, found.get(name)) for name, number in values.items()
                }
                rows.append(
                    Slice(column=column.name, value=value, num_examples=count, metrics=metrics)
                )
        return tuple(rows)

    def curves(self) -> dict[str, Any]:
        """ROC and precision-recall curves."""
        if self._schema.task == "binary":
            return _both_curves(*self._total["counts"])
        if self._schema.task == "regression" or "curves" not in self._total:
            return {}
        by_class = self._total["curves"]
        whole = _both_curves(*by_class.sum(0))
        classes = {
            name: _both_curves(*counts, most=60)
            for name, counts in zip(self._schema.classes, by_class, strict=True)
            if counts[0].any() and counts[1].any()
        }
        return {**whole, "by_class": classes}

    def confusion_matrix(self) -> dict[str, Any]:
        """{labels, matrix}, rows being the true classes."""
        if self._schema.task == "binary":
            cells = np.array(binary.confusion(*self._total["counts"])).reshape(2, 2)
        elif self._schema.task == "multiclass":
            cells = self._total["confusion"]
        else:
            return {}
        return {"labels": list(self._schema.classes), "matrix": cells.astype(int).tolist()}

    def calibration(self) -> tuple[dict[str, Any], ...]:
        """Bins of predicted against observed."""
        if self._schema.task == "regression":
            predictions = self._total["predictions"]
            return tuple(regression.calibration_bins(predictions, self._confidence))
        rows = (
            binary.calibration_bins(*self._total["counts"])
            if self._schema.task == "binary"
            else multiclass.calibration_bins(self._total["confidence"])
        )
        return tuple({**row, **self._share_interval(row)} for row in rows)

    def threshold_table(self) -> tuple[dict[str, Any], ...]:
        """What each threshold would accept, for binary classifiers."""
        if self._schema.task != "binary":
            return ()
        return tuple(threshold_table(*self._total["counts"]))

    def scores(self) -> dict[str, Any]:
        """Histogram of the probabilities by class, for binary classifiers."""
        if self._schema.task != "binary":
            return {}
        return dict(binary.score_histogram(*self._total["counts"]))

    def residuals(self) -> dict[str, Any]:
        """Histogram of prediction - label, for regression."""
        if not isinstance(self._tally, regression.RegressionTally):
            return {}
        return regression.residual_histogram(self._total, self._tally.scale)

    def class_counts(self) -> dict[str, int]:
        """Scored examples by class, in the schema's order; empty for regression."""
        matrix = self.confusion_matrix()
        if not matrix:
            return {}
        counts = np.sum(matrix["matrix"], 1)
        return {name: int(count) for name, count in zip(matrix["labels"], counts, strict=True)}

    def _values_of(self, state: Mapping[str, Floats]) -> Values:
        if isinstance(self._tally, regression.RegressionTally):
            return regression.metric_values(state, self._tally.scale)
        return dict(self._task.metric_values(state))

    def _share_interval(self, row: Mapping[str, Any]) -> dict[str, float | None]:
        count = row["num_examples"]
        low, high = intervals.wilson(row["observed"] * count, count, self._confidence) or (0.0, 1.0)
        return {"low": low, "high": high}


def _both_curves(negatives: Floats, positives: Floats, *, most: int = 200) -> dict[str, Any]:
    return {
        "roc": roc_curve(negatives, positives, most=most),
        "precision_recall": precision_recall_curve(negatives, positives, most=most),
    }


def _metric(
    name: str, value: float, interval: Interval | None, baseline: float | None = None
) -> Metric:
    low, high = (float(interval[0]), float(interval[1])) if interval else (None, None)
    if interval and name.removeprefix("macro_") in _SHARES:
        low, high = max(float(interval[0]), 0.0), min(float(interval[1]), 1.0)
    return Metric(value=value, low=low, high=high, baseline=baseline)


def _coarser(counts: Floats) -> Floats:
    """Histograms of fewer bins: a spread over groups does not need the finest ones."""
    merged: Floats = counts.reshape(*counts.shape[:-1], -1, 8).sum(-1)
    return merged


def _is_shared(name: str) -> bool:
    return name.split(":")[1] in ("curves", "residuals", "predictions")
