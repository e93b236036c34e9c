"""The report as a page for people: one file, no scripts, nothing loaded from anywhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.contracts.report import Report
from components.evaluate_model.page import charts, slice_tables, tables
from components.evaluate_model.page.elements import Markup, element, join
from components.evaluate_model.page.numbers import figure, moment

_STYLE = Path(__file__).with_name("style.css")
# Metrics at the top of the page, by task; those that are there.
_KEY_METRICS = {
    "binary": ("auc", "average_precision", "accuracy", "log_loss"),
    "multiclass": ("accuracy", "macro_f1", "macro_auc", "log_loss"),
    "regression": ("rmse", "mae", "r2", "bias"),
}
_VERDICTS = {"passed": "Passed", "failed": "Failed", "cannot decide": "Cannot decide"}


def render(report: Report) -> str:
    """The page's HTML."""
    sections = [
        ("verdict", "Verdict", _verdict(report)),
        ("metrics", "Metrics", [tables.metrics(report), _metrics_note(report)]),
        ("slices", "Slices", slice_tables.slices(report)),
        ("curves", "Curves", _curves(report)),
        ("calibration", "Calibration", _calibration(report)),
        ("data", "Data", _data(report)),
        ("training", "Training", _training(report)),
        ("lineage", "Lineage", _lineage(report)),
    ]
    shown = [(key, name, [part for part in parts if part]) for key, name, parts in sections]
    shown = [section for section in shown if section[2]]
    module = report.lineage.get("model_module", "model")
    title = f"{_VERDICTS[report.verdict]}: evaluation of {module}, step {report.checkpoint_step}"
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(report, module),
        _navigation(shown),
        element(
            "main",
            *(
                element("section", element("h2", name), *parts, id=key)
                for key, name, parts in shown
            ),
            id="content",
        ),
        element("footer", f"Written {moment(report.created)}. report.json holds the same content."),
    )
    return "<!doctype html>\n" + element("html", _head(title), body, lang="en") + "\n"


def _head(title: str) -> Markup:
    # An icon of its own, or browsers ask the server for one.
    icon = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href=icon),
        element("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )


def _header(report: Report, module: str) -> Markup:
    kind = report.verdict.replace(" ", "-")
    sign = {"passed": "✓", "failed": "✕", "cannot decide": "?"}[report.verdict]
    return element(
        "header",
        element(
            "p",
            join("Evaluation of ", element("code", module), f", step {report.checkpoint_step:,}"),
            class_="subject",
        ),
        element(
            "h1",
            element("span", sign, class_="sign", aria_hidden="true"),
            _VERDICTS[report.verdict],
        ),
        element("p", report.reason, class_="reason"),
        element("dl", *(_key_figure(report, name) for name in _key_metrics(report)), class_="keys"),
        class_=f"verdict {kind}",
    )


def _navigation(shown: list[tuple[str, str, list[Any]]]) -> Markup:
    links = (element("li", element("a", name, href=f"#{key}")) for key, name, _ in shown)
    return element("nav", element("ul", *links), aria_label="Sections")


def _key_metrics(report: Report) -> list[str]:
    known = [name for name in _KEY_METRICS[report.task] if name in report.metrics]
    return known or list(report.metrics)[:4]


def _key_figure(report: Report, name: str) -> Markup:
    metric = report.metrics[name]
    notes = []
    if metric.low is not None:
        notes.append(f"{figure(metric.low, 3)} – {figure(metric.high, 3)}")
    if metric.champion is not None:
        notes.append(f"champion {figure(metric.champion, 3)}")
    elif metric.baseline is not None:
        notes.append(f"baseline {figure(metric.baseline, 3)}")
    return element(
        "div",
        element("dt", tables.name_of(name)),
        element("dd", figure(metric.value, 3)),
        element("dd", " · ".join(notes), class_="note") if notes else None,
    )


def _verdict(report: Report) -> list[Any]:
    summary = (
        f"{report.num_examples:,} examples of the split “{report.split}” were scored, as many as "
        "the dataset's manifest says."
    )
    return [element("p", summary), tables.checks(report)]


def _metrics_note(report: Report) -> Markup:
    parts = [
        "A dot is the value, the line through it the interval, a short upright line the baseline: "
        "a model that knows how often each label occurs and nothing else."
    ]
    if report.champion.get("version"):
        parts.append(
            f" A diamond is the champion, version {report.champion['version']}, on the same "
            "examples; the interval of a change is that of the paired difference."
        )
    elif report.champion.get("problem"):
        parts.append(f" The champion could not be compared with: {report.champion['problem']}")
    return element("p", *parts, class_="note")


def _curves(report: Report) -> list[Any]:
    drawings = (
        charts.roc(report),
        charts.precision_recall(report),
        charts.score_histogram(report),
        charts.thresholds(report),
        charts.residuals(report),
    )
    return [
        _grid(*drawings),
        _grid(tables.confusion(report), tables.by_class(report))
        if len(report.classes) <= 6
        else join(tables.confusion(report), tables.by_class(report)),
        tables.threshold_table(report),
    ]


def _calibration(report: Report) -> list[Any]:
    drawing = charts.calibration(report)
    if drawing is None:
        return []
    head = ("predicted", "observed", f"{report.confidence:.0%} interval", "examples")
    rows = [
        (
            figure(row["predicted"], 3),
            figure(row["observed"], 3),
            "–" if row["low"] is None else f"{figure(row['low'], 3)} – {figure(row['high'], 3)}",
            f"{row['num_examples']:,}",
        )
        for row in report.calibration
    ]
    listed = tables.table(head, rows, caption="Bins of equally many examples", numeric=range(4))
    return [_grid(drawing, listed)]


def _data(report: Report) -> list[Any]:
    data = report.data
    if not data:
        return []
    facts = [("label", data["label"]), ("rows read", f"{data['num_rows']:,}")]
    facts.append(("rows rejected", f"{data['num_rejected']:,}"))
    facts += [(f"split {name}", f"{count:,}") for name, count in data["splits"].items()]
    facts += [
        (f"label “{name}”", f"{count:,} of {report.num_examples:,}")
        for name, count in list(data["classes"].items())[:12]
    ]
    return [_facts(facts), tables.features(report)]


def _training(report: Report) -> list[Any]:
    training = report.training
    if not training:
        return [
            element("p", "The training run has not finished; it left no summary.", class_="note")
        ]
    facts = [
        ("steps", f"{training['step']:,}"),
        ("epochs", training["num_epochs"]),
        ("ended", training["reason"]),
        ("workers", training["num_workers"]),
        ("restarts", training["num_restarts"]),
    ]
    return [
        _facts(facts),
        _grid(charts.training_curve(training), charts.validation_curve(training)),
        charts.goodput(training["goodput"]),
        tables.restarts(report),
    ]


def _lineage(report: Report) -> list[Any]:
    lineage = report.lineage
    if not lineage:
        return []
    versions = lineage["versions"]
    facts = [
        ("training run", lineage["run_uri"]),
        ("run fingerprint", lineage["run_fingerprint"]),
        ("dataset", lineage["dataset_uri"]),
        ("dataset fingerprint", lineage["dataset_fingerprint"]),
        ("model module", lineage["model_module"]),
        ("code version", lineage["code_version"]),
        ("evaluated with", _pairs(versions["evaluation"])),
        ("trained with", _pairs(versions["training"]) or "–"),
    ]
    return [
        _facts(facts, wide=True),
        _parameters("Hyperparameters", lineage["hyperparameters"]),
        _parameters("Training options", lineage["training_options"]),
        _parameters("Evaluation options", lineage["evaluation_options"]),
    ]


def _parameters(title: str, values: Mapping[str, Any]) -> Markup | None:
    if not values:
        return None
    facts = [(name, _plain(value)) for name, value in values.items()]
    return element("details", element("summary", title), _facts(facts, wide=True), open=True)


def _facts(facts: list[tuple[str, Any]], *, wide: bool = False) -> Markup:
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts)
    return element("dl", *pairs, class_="facts wide" if wide else "facts")


def _grid(*parts: Markup | None) -> Markup | None:
    shown = [part for part in parts if part is not None]
    return element("div", *shown, class_="grid") if shown else None


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
