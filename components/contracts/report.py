"""The evaluation report: what evaluate_model decides and export_model, the gate and people read.

Agreed between evaluate_model, which writes, and export_model, the components' bodies and the
summary. A report is `report.json` (its form is published in `report.schema.json` beside this
module), `report.html`, `reference.json` (outputs of the first rows, which the export is compared
with) and `manifest.json`, created last.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.commit import open_committed
from components.storage.errors import CorruptObjectError, ObjectNotFoundError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
REPORT_NAME = "report.json"
PAGE_NAME = "report.html"
REFERENCE_NAME = "reference.json"

Verdict = Literal["passed", "failed", "cannot decide"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number with what is needed to judge it.

    Attributes:
        value: None where it is not defined (one class only, no examples).
        low, high: ends of the interval at the report's confidence, None where there is none.
        baseline: of a model that knows the label's distribution only, where that is known.
        champion: the champion's value on the same data.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    baseline: float | None = None
    champion: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One threshold and what came of it.

    Attributes:
        metric: its name.
        rule: `min`, `max`, or `min_change`, `max_change` relative to the champion.
        limit: the threshold.
        slice: `column=value`, empty for all examples.
        value: what was compared with the limit.
        outcome: of this check.
        text: one sentence.
    """

    metric: str
    rule: str
    limit: float
    slice: str
    value: float | None
    outcome: Verdict
    text: str


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The examples with one value of a column.

    Attributes:
        column: its name.
        value: as text; for numbers a value or a range.
        num_examples: counted.
        metrics: by name.
    """

    column: str
    value: str
    num_examples: int
    metrics: Mapping[str, Metric]


@dataclass(frozen=True, kw_only=True)
class Report:
    """An evaluation.

    Attributes:
        verdict: of all checks together.
        reason: one sentence.
        task, classes: of the dataset.
        split: that was scored.
        num_examples: scored; equals the manifest's count.
        checkpoint_step: that was scored.
        confidence: of the intervals, 0.95 for instance.
        metrics: by name.
        checks: thresholds and their outcomes.
        slices: by column, most frequent values first.
        curves: `roc` {fpr, tpr, thresholds} and `precision_recall` {recall, precision, thresholds};
            for multi-class under one-vs-rest, micro-averaged, with the classes' own below
            `by_class`.
        confusion_matrix: {labels, matrix (rows: true class)}; empty for regression.
        calibration: bins of {predicted, observed, low, high, num_examples}.
        threshold_table: rows of {threshold, precision, recall, f1, false_positive_rate, accepted}.
        scores: for binary {edges, negatives, positives}: histogram of the probabilities by class.
        residuals: for regression {edges, counts} of prediction - label.
        data: summary of the dataset.
        training: how the run went: steps, restarts, goodput, history.
        champion: the model compared with: {version, model_uri, metrics, changes}, or {problem}
            where it could not be; empty for none.
        lineage: uris, fingerprints, versions and parameters.
        created: seconds since the epoch.
    """

    verdict: Verdict
    reason: str
    task: str
    classes: tuple[str, ...]
    split: str
    num_examples: int
    checkpoint_step: int
    confidence: float
    metrics: Mapping[str, Metric]
    checks: tuple[Check, ...] = ()
    slices: tuple[Slice, ...] = ()
    curves: Mapping[str, Any] = field(default_factory=dict)
    confusion_matrix: Mapping[str, Any] = field(default_factory=dict)
    calibration: tuple[Mapping[str, Any], ...] = ()
    threshold_table: tuple[Mapping[str, Any], ...] = ()
    scores: Mapping[str, Any] = field(default_factory=dict)
    residuals: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    champion: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    format_version: int = FORMAT_VERSION

    @property
    def passed(self) -> bool:
        """Whether the gate is open."""
        return self.verdict == "passed"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(json.loads(to_json_bytes(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """The inverse of `to_json`."""
        return cls(
            **{
                **data,
                "classes": tuple(data["classes"]),
                "metrics": _metrics(data["metrics"]),
                "checks": tuple(Check(**check) for check in data["checks"]),
                "slices": tuple(
                    Slice(**{**row, "metrics": _metrics(row["metrics"])}) for row in data["slices"]
                ),
                "calibration": tuple(data["calibration"]),
                "threshold_table": tuple(data["threshold_table"]),
            }
        )


def to_json_bytes(report: Report) -> bytes:
    """Serialize for `report.json`. A number that is not finite is a fault of ours: ValueError."""
    return json.dumps(dataclasses.asdict(report), indent=1, allow_nan=False).encode()


def read_report(store: Store) -> Report:
    """Read the report committed at the store's root.

    Raises:
        InputError: nothing is committed there, or it is damaged.
    """
    remedy = "run the evaluation again without the cache"
    try:
        manifest = open_committed(store, MANIFEST_NAME)
        if manifest is None:
            raise InputError(
                f"no committed report at {store.uri}: {store.uri_of(MANIFEST_NAME)} is missing; "
                + remedy
            )
        data = json.loads(store.read(REPORT_NAME))
    except (CorruptObjectError, ObjectNotFoundError, ValueError) as error:
        raise InputError(f"the report is damaged: {error}; {remedy}") from error
    if data.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{store.uri_of(REPORT_NAME)} has format version {data.get('format_version')}, this "
            f"code reads {FORMAT_VERSION}; {remedy}"
        )
    return Report.from_json(data)


def _metrics(data: Mapping[str, Any]) -> dict[str, Metric]:
    return {name: Metric(**metric) for name, metric in data.items()}
