"""The report's drawings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from components.contracts.report import Metric, Report
from components.evaluate_model.page.elements import Markup, element, join
from components.evaluate_model.page.numbers import figure, seconds, share
from components.evaluate_model.page.plot import Plot, figure_of, legend, spans, thinned

# Curves of single classes beside the average, and points of a training curve.
MOST_CLASS_CURVES = 6
MOST_POINTS = 400
_UNIT = (0.0, 1.0)
_UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)

BUCKETS = {
    "productive": "training steps",
    "start_up": "start-up",
    "data_wait": "waiting for data",
    "checkpoint_wait": "checkpoints",
    "restore": "restoring",
    "lost": "lost to failures",
    "stalled": "stalled",
}


def roc(report: Report) -> Markup | None:
    """True against false positive rate."""
    curve = report.curves.get("roc")
    if not curve or not curve["fpr"]:
        return None
    plot = _unit_plot("false positive rate", "true positive rate")
    plot.segment((0, 0), (1, 1))
    entries = _class_lines(plot, report, "roc", "fpr", "tpr")
    if not entries:
        plot.area([*curve["fpr"], 1.0], [*curve["tpr"], 1.0])
    plot.line(curve["fpr"], curve["tpr"])
    metric = report.metrics.get("auc") or report.metrics.get("macro_auc")
    area = figure(metric.value) if metric else "–"
    which = "area" if "auc" in report.metrics else "mean area of the classes"
    entries = [("line a", "all classes together"), *entries] if entries else []
    return figure_of(
        plot.svg(f"ROC curve; {which} {area}, where guessing gives 0.5."),
        join("ROC curve ", element("small", f"{which} {area}")),
        legend(*entries) if entries else None,
    )


def precision_recall(report: Report) -> Markup | None:
    """Precision against recall."""
    curve = report.curves.get("precision_recall")
    if not curve or not curve["recall"]:
        return None
    plot = _unit_plot("recall", "precision")
    metric = report.metrics.get("average_precision")
    base = metric.baseline if metric else None
    if base is not None:
        plot.segment((0, base), (1, base))
    entries = _class_lines(plot, report, "precision_recall", "recall", "precision")
    plot.line(curve["recall"], curve["precision"])
    note = f"average precision {figure(metric.value)}" if metric else "one class against the rest"
    text = f"Precision-recall curve; {note}"
    if base is not None:
        text += f", where guessing gives {figure(base)}"
    return figure_of(
        plot.svg(text + "."),
        join("Precision and recall ", element("small", note)),
        legend(("line a", "all classes together"), *entries) if entries else None,
    )


def calibration(report: Report) -> Markup | None:
    """Observed against predicted, with intervals."""
    rows = report.calibration
    if not rows:
        return None
    if report.task == "regression":
        values = [row[key] for row in rows for key in ("predicted", "observed")]
        low, high = min(values), max(values)
        pad = (high - low) * 0.05 or 1.0
        limits = (low - pad, high + pad)
        plot = Plot(x=limits, y=limits, x_label="predicted", y_label="observed mean")
    else:
        limits = _UNIT
        plot = _unit_plot("predicted probability", "observed share")
    plot.segment((limits[0], limits[0]), (limits[1], limits[1]))
    for row in rows:
        if row.get("low") is not None:
            plot.segment((row["predicted"], row["low"]), (row["predicted"], row["high"]), "whisk a")
    plot.line([row["predicted"] for row in rows], [row["observed"] for row in rows], "a thin")
    for row in rows:
        text = (
            f"predicted {figure(row['predicted'], 3)}, observed {figure(row['observed'], 3)} "
            f"({row['num_examples']:,} examples)"
        )
        plot.point(row["predicted"], row["observed"], text)
    worst = max(rows, key=lambda row: abs(row["predicted"] - row["observed"]))
    title = (
        f"Calibration in {len(rows)} bins of equally many examples. Furthest off: predicted "
        f"{figure(worst['predicted'], 3)}, observed {figure(worst['observed'], 3)}."
    )
    what = "of the predicted class" if report.task == "multiclass" else "bins of equal size"
    return figure_of(
        plot.svg(title),
        join("Calibration ", element("small", what)),
        legend(
            ("dot a", f"observed, {report.confidence:.0%} interval"),
            ("guide", "as predicted"),
        ),
    )


def score_histogram(report: Report) -> Markup | None:
    """Scores by true class, for binary classifiers."""
    scores = report.scores
    if not scores:
        return None
    sides = (
        ("b", scores["negatives"], report.classes[0]),
        ("a", scores["positives"], report.classes[1]),
    )
    heights = [[count / max(sum(counts), 1) for count in counts] for _, counts, _ in sides]
    top = max(max(row) for row in heights) or 1.0
    plot = Plot(
        x=_UNIT,
        y=(0.0, top * 1.05),
        x_label="predicted probability",
        y_label="share of the class",
        x_ticks=_UNIT_TICKS,
    )
    for (side, counts, name), row in zip(sides, heights, strict=True):
        for span, height, count in zip(spans(scores["edges"]), row, counts, strict=True):
            text = f"{name}: {count:,} between {span[0]:.3f} and {span[1]:.3f}"
            plot.bar(span, (0.0, height), text, f"{side} clear")
    return figure_of(
        plot.svg(
            f"Histogram of scores by true class, {report.classes[0]} and {report.classes[1]}."
        ),
        "Scores by true class",
        legend(("fill b", report.classes[0]), ("fill a", report.classes[1])),
    )


def thresholds(report: Report) -> Markup | None:
    """Precision, recall and F1 over the threshold, for binary classifiers."""
    curve = report.curves.get("precision_recall")
    if report.task != "binary" or not curve or not curve["recall"]:
        return None
    xs, recall, precision = curve["thresholds"], curve["recall"], curve["precision"]
    sums = [r + p for r, p in zip(recall, precision, strict=True)]
    f1 = [2 * r * p / s if s else 0.0 for r, p, s in zip(recall, precision, sums, strict=True)]
    plot = Plot(
        x=(min(xs), max(xs)),
        y=(0.0, 1.02),
        x_label="threshold on the probability",
        y_label="value",
        y_ticks=_UNIT_TICKS,
    )
    for values, side in ((precision, "a"), (recall, "b"), (f1, "c")):
        plot.line(xs, values, side)
    best = next((row for row in report.threshold_table if row["best_f1"]), None)
    if best:
        label = f"best F1 at {best['threshold']:.3g}"
        plot.marker(best["threshold"], label, f"F1 {figure(best['f1'], 3)}")
    return figure_of(
        plot.svg("Precision, recall and F1 by threshold."),
        "What a threshold does",
        legend(("line a", "precision"), ("line b", "recall"), ("line c", "F1")),
    )


def residuals(report: Report) -> Markup | None:
    """Histogram of prediction - label."""
    if not report.residuals:
        return None
    edges, counts = report.residuals["edges"], report.residuals["counts"]
    plot = Plot(
        x=(edges[0], edges[-1]),
        y=(0.0, max(counts) * 1.05 or 1.0),
        x_label="prediction − label",
        y_label="examples",
    )
    for span, count in zip(spans(edges), counts, strict=True):
        plot.bar(span, (0.0, count), f"{count:,} between {span[0]:.4g} and {span[1]:.4g}")
    plot.segment((0.0, 0.0), (0.0, max(counts) * 1.05), "guide")
    return figure_of(plot.svg("Histogram of the residuals, prediction minus label."), "Residuals")


def training_curve(training: Mapping[str, Any]) -> Markup | None:
    """Loss over steps, with validations and restarts."""
    history = training.get("history", [])
    losses = [row for row in history if row.get("loss") is not None]
    validations = [row for row in history if row.get("val_loss") is not None]
    if not losses and not validations:
        return None
    shown = [losses[index] for index in thinned(len(losses), MOST_POINTS)]
    ordered = sorted([r["loss"] for r in shown] + [r["val_loss"] for r in validations])
    # One wild first loss must not flatten the rest of the curve.
    top = min(ordered[-1], 3 * ordered[len(ordered) * 9 // 10] or ordered[-1])
    low = min(0.0, ordered[0]) if ordered[0] < top * 0.5 else ordered[0] * 0.95
    plot = _history_plot(training, (low, top * 1.04), "loss")
    if shown:
        plot.line([row["step"] for row in shown], [row["loss"] for row in shown])
    entries = [("line a", "training loss")]
    if validations:
        _dotted(plot, [(row["step"], row["val_loss"]) for row in validations], "b")
        entries.append(("dot b", "validation loss"))
    return _history_figure(plot, training, "Loss", entries)


def validation_curve(training: Mapping[str, Any]) -> Markup | None:
    """Validation metrics that are shares, over steps; the learning rate where there are none."""
    history = training.get("history", [])
    rows = [row for row in history if row.get("val_loss") is not None]
    names = [
        name
        for name in (rows[-1] if rows else {})
        if name.startswith("val_") and name != "val_loss"
        and all(row.get(name) is not None and 0 <= row[name] <= 1 for row in rows)
    ][:MOST_CLASS_CURVES]  # fmt: skip
    if not names:
        return _learning_rate(training)
    values = [row[name] for row in rows for name in names]
    pad = (max(values) - min(values)) * 0.1 or 0.05
    limits = (max(min(values) - pad, 0.0), min(max(values) + pad, 1.0))
    plot = _history_plot(training, limits, "value")
    entries = []
    for index, name in enumerate(names):
        _dotted(plot, [(row["step"], row[name]) for row in rows], f"s{index}")
        entries.append((f"dot s{index}", name.removeprefix("val_").replace("_", " ")))
    return _history_figure(plot, training, "Validation metrics", entries)


def _learning_rate(training: Mapping[str, Any]) -> Markup | None:
    rows = [row for row in training.get("history", []) if row.get("learning_rate") is not None]
    if not rows:
        return None
    rows = [rows[index] for index in thinned(len(rows), MOST_POINTS)]
    top = max(row["learning_rate"] for row in rows)
    plot = _history_plot(training, (0.0, top * 1.05), "learning rate")
    plot.line([row["step"] for row in rows], [row["learning_rate"] for row in rows])
    return _history_figure(plot, training, "Learning rate", [("line a", "learning rate")])


def _history_plot(training: Mapping[str, Any], y: tuple[float, float], y_label: str) -> Plot:
    last = max(row["step"] for row in training["history"])
    plot = Plot(x=(0.0, float(last)), y=y, x_label="step", y_label=y_label)
    for number, restart in enumerate(training.get("restarts", []), 1):
        text = f"restart {number} from step {restart['step']}: {restart.get('cause', '')}"
        plot.marker(float(restart["step"]), str(number), text)
    return plot


def _history_figure(
    plot: Plot, training: Mapping[str, Any], name: str, entries: list[tuple[str, str]]
) -> Markup:
    restarts = len(training.get("restarts", []))
    if restarts:
        entries = [*entries, ("event", "restart")]
    return figure_of(plot.svg(f"{name} by step, with {restarts} restarts."), name, legend(*entries))


def _dotted(plot: Plot, points: Sequence[tuple[float, float]], side: str) -> None:
    plot.line([x for x, _ in points], [y for _, y in points], f"{side} thin")
    for x, y in points:
        plot.point(x, y, f"step {x}: {y:.4g}", side)


def goodput(buckets: Mapping[str, float]) -> Markup | None:
    """Where the seconds of training went, as one bar."""
    total = sum(buckets.values())
    if not total:
        return None
    known = [name for name in BUCKETS if buckets.get(name)]
    known += [name for name in buckets if name not in BUCKETS and buckets[name]]
    left, parts, entries = 0.0, [], []
    for name in known:
        width = buckets[name] / total * 1000
        label = (
            f"{BUCKETS.get(name, name)}: {seconds(buckets[name])}, {share(buckets[name] / total)}"
        )
        parts.append(
            element(
                "rect",
                element("title", label),
                x=left,
                y=0,
                width=max(width - 1.5, 0.8),
                height=36,
                class_=f"bucket {name.replace('_', '-')}",
            )
        )
        entries.append((f"bucket {name.replace('_', '-')}", label))
        left += width
    good = share(buckets.get("productive", 0.0) / total)
    drawing = element(
        "svg",
        element("title", f"Of {seconds(total)}, {good} were training steps."),
        *parts,
        viewBox="0 0 1000 36",
        preserveAspectRatio="none",
        role="img",
        class_="goodput",
    )
    caption = join("Goodput ", element("small", f"{good} of {seconds(total)}"))
    return figure_of(drawing, caption, legend(*entries))


def whisker(
    metric: Metric, low: float, high: float, *, label: str, guide: float | None = None
) -> Markup:
    """A value with its interval on a scale from `low` to `high`; `guide` draws a line there."""
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return 4 + 152 * min(max((value - low) / span, 0.0), 1.0)

    marks: list[Markup] = [element("line", x1=4, x2=156, y1=11, y2=11, class_="grid")]
    if guide is not None and math.isfinite(guide):
        marks.append(element("line", x1=at(guide), x2=at(guide), y1=1, y2=21, class_="guide"))
    if metric.baseline is not None:
        x = at(metric.baseline)
        marks.append(element("line", x1=x, x2=x, y1=4, y2=18, class_="baseline"))
    if metric.low is not None and metric.high is not None:
        marks.append(
            element("line", x1=at(metric.low), x2=at(metric.high), y1=11, y2=11, class_="whisk a")
        )
    if metric.champion is not None:
        x = at(metric.champion)
        diamond = f"{x - 5:.1f},11 {x:.1f},6 {x + 5:.1f},11 {x:.1f},16"
        marks.append(element("polygon", points=diamond, class_="champion"))
    if metric.value is not None:
        marks.append(element("circle", cx=at(metric.value), cy=11, r=4.5, class_="dot a"))
    return element(
        "svg", element("title", label), *marks, viewBox="0 0 160 22", role="img", class_="whisker"
    )


def spark(histogram: Sequence[Sequence[float]], label: str) -> Markup | str:
    """A column's histogram as a strip."""
    if not histogram or not histogram[1]:
        return ""
    counts = list(histogram[1])
    top = max(counts) or 1
    width = 120 / len(counts)
    bars = [
        element(
            "rect",
            x=index * width,
            y=24 - 23 * count / top,
            width=max(width - 0.5, 0.5),
            height=23 * count / top,
            class_="bar a",
        )
        for index, count in enumerate(counts)
        if count
    ]
    return element(
        "svg", element("title", label), *bars, viewBox="0 0 120 24", role="img", class_="spark"
    )


def _unit_plot(x_label: str, y_label: str) -> Plot:
    return Plot(
        x=_UNIT,
        y=(0.0, 1.02),
        x_label=x_label,
        y_label=y_label,
        x_ticks=_UNIT_TICKS,
        y_ticks=_UNIT_TICKS,
    )


def _class_lines(plot: Plot, report: Report, curve: str, x: str, y: str) -> list[tuple[str, str]]:
    """Thin lines of the classes with the most examples; returns their legend."""
    by_class = report.curves.get("by_class", {})
    counts = report.data.get("classes", {})
    names = sorted(by_class, key=lambda name: -counts.get(name, 0))[:MOST_CLASS_CURVES]
    entries = []
    for index, name in enumerate(names):
        found = by_class[name][curve]
        plot.line(found[x], found[y], f"thin s{index}")
        entries.append((f"line s{index}", name))
    return entries
