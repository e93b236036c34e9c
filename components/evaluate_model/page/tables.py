"""Tables of the report."""

from collections.abc import Iterable, Sequence
from typing import Any

from components.contracts.report import Check, Metric, Report
from components.evaluate_model.page import charts
from components.evaluate_model.page.elements import Markup, element, join
from components.evaluate_model.page.numbers import change, figure, share, short

NAMES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "f1": "F1",
    "log_loss": "log loss",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R²",
    "macro_auc": "macro AUC",
    "macro_f1": "macro F1",
}
MOST_CLASSES = 40


def name_of(metric: str) -> str:
    """A metric's name for people."""
    if metric.startswith("compiled_"):
        return f"{metric.removeprefix('compiled_').replace('_', ' ')} (as compiled)"
    return NAMES.get(metric, metric.replace("_", " "))


def table(
    head: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: str, numeric: Sequence[int] = ()
) -> Markup:
    """A table whose first cell in each row is its heading; `numeric` columns align right."""
    classes = ["num" if index in numeric else None for index in range(len(head))]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element(
                "thead",
                element(
                    "tr",
                    *(
                        element("th", cell, scope="col", class_=kind)
                        for cell, kind in zip(head, classes, strict=True)
                    ),
                ),
            ),
            element("tbody", *(_row(row, classes) for row in rows)),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def checks(report: Report) -> Markup:
    """Thresholds and what came of them."""
    if not report.checks:
        return element("p", "No thresholds were set.", class_="note")
    return table(
        ("outcome", "metric", "where", "value", "asked for"),
        (
            (
                badge(check.outcome),
                name_of(check.metric)
                + (" against the champion" if check.rule.endswith("_change") else ""),
                check.slice or "all examples",
                change(check.value) if check.rule.endswith("_change") else figure(check.value),
                _asked(check),
            )
            for check in report.checks
        ),
        caption="Thresholds",
        numeric=(3, 4),
    )


def metrics(report: Report) -> Markup:
    """All metrics with interval, baseline and champion."""
    with_champion = any(metric.champion is not None for metric in report.metrics.values())
    head = ["metric", "value", f"{report.confidence:.0%} interval", "", "baseline"]
    numeric = [1, 2, 4]
    if with_champion:
        head += ["champion", "change"]
        numeric += [5, 6]
    rows = []
    for name, metric in report.metrics.items():
        row: list[Any] = [
            name_of(name),
            element("strong", figure(metric.value)),
            interval(metric),
            _whisker(name, metric),
            figure(metric.baseline),
        ]
        if with_champion:
            row += [figure(metric.champion), _changed(report, name)]
        rows.append(row)
    return table(head, rows, caption="Metrics", numeric=numeric)


def confusion(report: Report) -> Markup | None:
    """The confusion matrix, shaded by share of the true class."""
    matrix, labels = report.confusion_matrix.get("matrix"), report.confusion_matrix.get("labels")
    if not matrix or not labels:
        return None
    if len(labels) > MOST_CLASSES:
        return _worst_confusions(matrix, labels)
    rows = []
    for label, cells in zip(labels, matrix, strict=True):
        total = sum(cells) or 1
        rows.append(
            [
                label,
                *(
                    element(
                        "span",
                        f"{count:,}",
                        element("small", share(count / total)) if len(labels) <= 4 else None,
                        class_=f"cell shade-{min(int(count / total * 10), 9)}" if count else "cell",
                    )
                    for count in cells
                ),
            ]
        )
    caption = "Confusion matrix" + (" at 0.5" if report.task == "binary" else "")
    return element(
        "div",
        table(
            ["true ↓ predicted →", *labels],
            rows,
            caption=caption,
            numeric=range(1, len(labels) + 1),
        ),
        class_="confusion" + (" dense" if len(labels) > 4 else ""),
    )


def by_class(report: Report) -> Markup | None:
    """Precision, recall and F1 of each class, for multi-class."""
    if report.task != "multiclass":
        return None
    matrix, labels = report.confusion_matrix["matrix"], report.confusion_matrix["labels"]
    rows = []
    for index, label in enumerate(labels[: MOST_CLASSES * 5]):
        present, hits = sum(matrix[index]), matrix[index][index]
        predicted = sum(row[index] for row in matrix)
        rows.append(
            (
                label,
                f"{present:,}",
                figure(hits / predicted if predicted else None, 3),
                figure(hits / present if present else None, 3),
                figure(2 * hits / (present + predicted) if present + predicted else None, 3),
            )
        )
    head = ("class", "examples", "precision", "recall", "F1")
    return table(head, rows, caption="By class", numeric=(1, 2, 3, 4))


def threshold_table(report: Report) -> Markup | None:
    """What each threshold does, in figures."""
    if not report.threshold_table:
        return None
    return table(
        ("threshold", "precision", "recall", "F1", "false positives", "accepted"),
        (
            (
                join(
                    f"{row['threshold']:.3g}",
                    element("span", " best F1", class_="tag") if row["best_f1"] else None,
                ),
                figure(row["precision"], 3),
                figure(row["recall"], 3),
                figure(row["f1"], 3),
                share(row["false_positive_rate"]),
                share(row["accepted"]),
            )
            for row in report.threshold_table
        ),
        caption="Thresholds on the predicted probability",
        numeric=range(1, 6),
    )


def features(report: Report) -> Markup:
    """The dataset's columns as training saw them."""
    rows = []
    for feature in report.data.get("features", []):
        total = feature["count"] + feature["missing"]
        # Lists count their elements singly: a share of rows cannot be told from that.
        missing = share(feature["missing"] / total) if total and not feature["shape"] else "–"
        rows.append(
            (
                feature["name"],
                feature["kind"] + ("" if not feature["shape"] else f" {feature['shape']}"),
                missing,
                _values_of(feature),
                charts.spark(_distribution(feature), f"Distribution of {feature['name']}"),
            )
        )
    head = ("column", "kind", "missing", "values", "distribution")
    return table(head, rows, caption="Columns in the training split", numeric=(2,))


def restarts(report: Report) -> Markup | None:
    """Restarts of the training and their causes."""
    found = report.training.get("restarts", [])
    if not found:
        return None
    rows = [
        (number, f"{row['step']:,}", row.get("worker", "–"), row.get("cause", "–"))
        for number, row in enumerate(found, 1)
    ]
    head = ("restart", "resumed at step", "worker", "cause")
    return table(head, rows, caption="Restarts", numeric=(1, 2))


def badge(outcome: str) -> Markup:
    """A verdict as a word with a sign, not by colour alone."""
    sign = {"passed": "✓", "failed": "✕", "cannot decide": "?"}[outcome]
    kind = outcome.replace(" ", "-")
    return element(
        "span", element("span", sign, aria_hidden="true"), f" {outcome}", class_=f"badge {kind}"
    )


def interval(metric: Metric) -> str:
    """Ends of an interval."""
    if metric.low is None or metric.high is None:
        return "–"
    return f"{figure(metric.low)} – {figure(metric.high)}"


def _row(cells: Sequence[Any], classes: Sequence[str | None]) -> Markup:
    first, *rest = cells
    return element(
        "tr",
        element("th", first, scope="row", class_=classes[0]),
        *(element("td", cell, class_=kind) for cell, kind in zip(rest, classes[1:], strict=True)),
    )


def _asked(check: Check) -> str:
    if check.rule == "as_in_training":
        return f"{figure(check.limit)} as in training"
    sign = "≥" if check.rule.startswith("min") else "≤"
    if check.rule == "finite":
        return "a finite number"
    plus = "+" if check.rule.endswith("_change") and check.limit > 0 else ""
    return f"{sign} {plus}{short(check.limit)}"


def _changed(report: Report, name: str) -> str:
    found = report.champion.get("changes", {}).get(name)
    if not found:
        return "–"
    if found["low"] is None:
        return change(found["value"])
    return f"{change(found['value'])} ({change(found['low'])} to {change(found['high'])})"


def _whisker(name: str, metric: Metric) -> Markup | str:
    if metric.value is None or metric.low is None or metric.high is None:
        return ""
    known = [
        value
        for value in (metric.value, metric.low, metric.high, metric.baseline, metric.champion)
        if value is not None
    ]
    pad = (max(known) - min(known)) * 0.08 or abs(metric.value) * 0.1 or 1.0
    label = f"{name_of(name)} {figure(metric.value)}, interval {interval(metric)}"
    if metric.baseline is not None:
        label += f", baseline {figure(metric.baseline)}"
    return charts.whisker(metric, min(known) - pad, max(known) + pad, label=label)


def _worst_confusions(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Markup:
    pairs = [
        (count, labels[true], labels[predicted])
        for true, row in enumerate(matrix)
        for predicted, count in enumerate(row)
        if true != predicted and count
    ]
    rows = [(true, guess, f"{count:,}") for count, true, guess in sorted(pairs, reverse=True)[:30]]
    head = ("true class", "predicted", "examples")
    return table(head, rows, caption="Most frequent confusions", numeric=(2,))


def _distribution(feature: dict[str, Any]) -> Sequence[Sequence[float]]:
    if feature["most_frequent"]:
        return [[], [count for _, count in feature["most_frequent"]]]
    return list(feature["histogram"])


def _values_of(feature: dict[str, Any]) -> str:
    if feature["most_frequent"]:
        words = ", ".join(word for word, _ in feature["most_frequent"][:3])
        return f"{feature['num_distinct']:,} distinct: {words}, …"
    if feature["minimum"] is None:
        return "–"
    return (
        f"{feature['minimum']:.4g} to {feature['maximum']:.4g}, mean {feature['mean']:.4g} "
        f"± {feature['deviation']:.3g}"
    )
