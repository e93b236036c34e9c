"""Tables of slices: the weakest ones, and one table a column."""

from collections.abc import Sequence

from components.contracts.report import Metric, Report, Slice
from components.evaluate_model.page import charts
from components.evaluate_model.page.elements import Markup, element
from components.evaluate_model.page.numbers import figure, share
from components.evaluate_model.page.tables import name_of, table

# What a slice's table draws, by task.
SLICE_METRICS = {"binary": "auc", "multiclass": "accuracy", "regression": "mae"}
# Tables that are open at first, and rows of the weakest slices.
OPEN_COLUMNS, MOST_WEAK = 3, 8
_SMALLER_IS_BETTER = frozenset({"mae"})
# Further columns, where the task has them.
_SHOWN_IN_SLICES = (
    *("accuracy", "log_loss", "predicted_rate", "observed_rate"),
    *("rmse", "bias"),
)


def slices(report: Report) -> list[Markup]:
    """The weakest slices, then one table a column."""
    columns: dict[str, list[Slice]] = {}
    for row in report.slices:
        columns.setdefault(row.column, []).append(row)
    weakest = _weakest(report)
    parts = [_slice_table(report, "slice", weakest, "Weakest slices")] if weakest else []
    for index, (column, rows) in enumerate(columns.items()):
        body = _slice_table(report, column, rows, f"By {column}")
        summary = element("summary", f"By {column} ", element("small", _range_of(report, rows)))
        parts.append(element("details", summary, body, class_="table", open=index < OPEN_COLUMNS))
    return parts


def _weakest(report: Report) -> list[Slice]:
    """Slices whose interval lies on the wrong side of the value for all examples, worst first."""
    name = SLICE_METRICS[report.task]
    whole = report.metrics.get(name)
    if whole is None or whole.value is None:
        return []
    sign = -1 if name in _SMALLER_IS_BETTER else 1
    found = []
    for row in report.slices:
        metric = row.metrics.get(name)
        if metric is None or metric.value is None or metric.low is None or metric.high is None:
            continue
        near = metric.high if sign > 0 else metric.low
        if sign * near < sign * whole.value:
            worded = Slice(
                column="slice",
                value=f"{row.column} = {row.value}",
                num_examples=row.num_examples,
                metrics=row.metrics,
            )
            found.append((sign * metric.value, worded))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])[:MOST_WEAK]]


def _range_of(report: Report, rows: Sequence[Slice]) -> str:
    name = SLICE_METRICS[report.task]
    known = [(row.metrics[name].value, row.value) for row in rows if name in row.metrics]
    values = [(value, text) for value, text in known if value is not None]
    if not values:
        return f"{len(rows)} values"
    (low, low_at), (high, high_at) = min(values), max(values)
    return (
        f"{len(rows)} values, {name_of(name)} from {figure(low, 3)} for {low_at} to "
        f"{figure(high, 3)} for {high_at}"
    )


def _slice_table(report: Report, column: str, rows: Sequence[Slice], caption: str) -> Markup:
    drawn = SLICE_METRICS[report.task]
    names = [name for name in rows[0].metrics if name != drawn]
    names = list(dict.fromkeys([*names, *(n for row in rows for n in row.metrics if n != drawn)]))
    names = [name for name in names if name in _SHOWN_IN_SLICES]
    whole = report.metrics.get(drawn)
    known = [row.metrics[drawn] for row in rows if drawn in row.metrics]
    ends = [value for metric in known for value in (metric.value, metric.low, metric.high)]
    values = [value for value in (*ends, whole.value if whole else None) if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    pad = (high - low) * 0.05
    body = []
    for row in rows:
        metric = row.metrics.get(drawn, Metric(value=None))
        label = f"{row.column} {row.value}: {name_of(drawn)} {figure(metric.value, 3)}"
        body.append(
            (
                row.value,
                f"{row.num_examples:,}",
                figure(metric.value, 3),
                charts.whisker(
                    metric, low - pad, high + pad, label=label, guide=whole.value if whole else None
                )
                if metric.value is not None
                else "",
                *(_cell(row, name) for name in names),
            )
        )
    head = (column, "examples", name_of(drawn), "", *map(name_of, names))
    numeric = (1, 2, *range(4, 4 + len(names)))
    return table(head, body, caption=caption, numeric=numeric)


def _cell(row: Slice, name: str) -> str:
    metric = row.metrics.get(name)
    if metric is None or metric.value is None:
        return "–"
    return share(metric.value) if name.endswith("_rate") else figure(metric.value, 3)
