"""The evaluation step: score a checkpoint on a split, decide, and commit the report."""

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.contracts.checkpoint import choose_step
from components.contracts.dataset import Dataset, open_dataset
from components.contracts.errors import InputError
from components.contracts.report import (
    MANIFEST_NAME,
    PAGE_NAME,
    REFERENCE_NAME,
    REPORT_NAME,
    Check,
    Metric,
    Report,
    read_report,
    to_json_bytes,
)
from components.contracts.split import SplitReader
from components.contracts.trained_model import TrainedModel, load_trained_model
from components.contracts.training_run import Completion, read_completion, read_run
from components.evaluate_model.measure import Measured, make_tally
from components.evaluate_model.options import EvaluateOptions
from components.evaluate_model.page.render import render
from components.evaluate_model.scoring import Scoring, logged_progress, score
from components.evaluate_model.slices import SliceColumn, slice_columns
from components.evaluate_model.thresholds import check_rules, decide, parse_thresholds
from components.storage.base import Store
from components.storage.commit import commit, read_manifest
from components.storage.open import open_store

# Outputs of so many first rows are kept with the report: the export must serve the same.
REFERENCE_ROWS = 256
# Relative difference allowed between the loss that training measured and ours: the sums are taken
# in another order; under mixed precision the last layer is computed more exactly here.
_AGREEMENT = {"none": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
_VERSIONED = ("tensorflow", "keras", "numpy")

log = logging.getLogger("relay.evaluate")


def evaluate_model(options: EvaluateOptions, output_uri: str) -> Report:
    """Score a checkpoint and commit the report at `output_uri`; a committed one is returned.

    Raises:
        InputError: something to read is missing or damaged, an option that cannot work, outputs
            that are not what the task asks for, or another report at `output_uri`.
        PermanentError: user code failed.
    """
    rules = parse_thresholds(options.thresholds, min_examples=options.min_examples)
    store, run_store = open_store(options.dataset_uri), open_store(options.run_uri)
    dataset = open_dataset(store)
    dataset.shards_of(options.split)
    read_run(run_store)
    step = choose_step(run_store, options.checkpoint)
    output = open_store(output_uri)
    identity = _identity(options, dataset, step)
    previous = _committed(output, identity)
    if previous is not None:
        return previous
    log.info("scoring step %d on split %r of %s", step, options.split, dataset.uri)
    trained = load_trained_model(run_store, dataset, step)
    columns = slice_columns(dataset.schema, options.slices, options.slice_values)
    scoring = _score(options, store, dataset, trained, columns)
    report = _report(options, dataset, trained, columns, scoring, rules, read_completion(run_store))
    files: Mapping[str, Path | bytes] = {
        REPORT_NAME: to_json_bytes(report),
        PAGE_NAME: render(report).encode(),
        REFERENCE_NAME: json.dumps({"outputs": _plain(scoring.reference)}).encode(),
    }
    commit(output, MANIFEST_NAME, files, {"identity": identity, "writer": "evaluate_model"})
    log.info("%s: %s", report.verdict, report.reason)
    return report


def result_of(report: Report, report_uri: str) -> dict[str, Any]:
    """What the step's `--result` file says."""
    roc = report.curves.get("roc", {})
    return {
        "report_uri": report_uri,
        "verdict": report.verdict,
        "passed": report.passed,
        "reason": report.reason,
        "metrics": {
            name: metric.value
            for name, metric in report.metrics.items()
            if metric.value is not None
        },
        "roc": roc if roc.get("fpr") else {},
        "confusion_matrix": dict(report.confusion_matrix),
        "html": open_store(report_uri).uri_of(PAGE_NAME),
        "checkpoint_step": report.checkpoint_step,
    }


def _identity(options: EvaluateOptions, dataset: Dataset, step: int) -> str:
    parts = [dataclasses.asdict(options), dataset.fingerprint, step]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _committed(output: Store, identity: str) -> Report | None:
    manifest = read_manifest(output, MANIFEST_NAME)
    if manifest is None:
        return None
    if manifest.get("identity") != identity:
        raise InputError(
            f"{output.uri} holds the report of another evaluation: give a new output uri, or "
            "delete that report"
        )
    log.info("found the same evaluation committed at %s", output.uri)
    return read_report(output)


def _score(
    options: EvaluateOptions,
    store: Store,
    dataset: Dataset,
    trained: TrainedModel,
    columns: tuple[SliceColumn, ...],
) -> Scoring:
    total = dataset.splits[options.split]
    with (
        tempfile.TemporaryDirectory(prefix="relay-evaluate-") as cache,
        logged_progress(total) as progress,
    ):
        scoring = score(
            SplitReader(store, dataset, dataset.shards_of(options.split), Path(cache)),
            dataset,
            trained,
            tally=make_tally(dataset.schema, columns),
            slices=columns,
            batch_size=options.batch_size,
            num_reference=REFERENCE_ROWS,
            progress=progress,
        )
    if scoring.tally.num_examples != total:
        raise InputError(
            f"split {options.split!r} of {dataset.uri} holds {scoring.tally.num_examples} "
            f"examples, its manifest says {total}: a shard was cut short. Run the conversion "
            "again without the cache"
        )
    return scoring


def _report(
    options: EvaluateOptions,
    dataset: Dataset,
    trained: TrainedModel,
    columns: tuple[SliceColumn, ...],
    scoring: Scoring,
    rules: Any,
    completion: Completion | None,
) -> Report:
    tally = scoring.tally
    measured = Measured(dataset.schema, tally, options.confidence)
    metrics = measured.metrics()
    for name, value in scoring.compiled.items():
        metrics[f"compiled_{name}"] = Metric(value=value if math.isfinite(value) else None)
    slices = measured.slices(columns)
    checks = check_rules(
        rules,
        metrics,
        slices,
        num_examples=tally.num_examples,
        changes={},
        why_undefined=_why_undefined(measured, dataset),
        why_no_champion="there is no champion to compare with",
    )
    checks += _agreement_checks(options, dataset, trained, scoring.compiled)
    verdict, reason = decide(
        checks, num_examples=tally.num_examples, num_not_finite=tally.num_not_finite
    )
    if verdict == "passed" and rules and tally.num_examples < options.min_examples:
        verdict = "cannot decide"
        reason = (
            f"Only {tally.num_examples:,} examples were scored, fewer than the "
            f"{options.min_examples:,} asked for."
        )
    return Report(
        verdict=verdict,
        reason=reason[:1].upper() + reason[1:],
        task=dataset.schema.task,
        classes=dataset.schema.classes,
        split=options.split,
        num_examples=tally.num_examples,
        checkpoint_step=trained.info.step,
        confidence=options.confidence,
        metrics=metrics,
        checks=tuple(checks),
        slices=slices,
        curves=measured.curves(),
        confusion_matrix=measured.confusion_matrix(),
        calibration=measured.calibration(),
        threshold_table=measured.threshold_table(),
        scores=measured.scores(),
        residuals=measured.residuals(),
        data=_data_summary(dataset, measured),
        training=_training_summary(completion),
        lineage=_lineage(options, dataset, trained),
        created=time.time(),
    )


def _why_undefined(measured: Measured, dataset: Dataset) -> str:
    present = [name for name, count in measured.class_counts().items() if count]
    if dataset.schema.task != "regression" and len(present) == 1:
        return f"every example of the split has the label {present[0]!r}"
    return "too few examples of the split count for it"


def _agreement_checks(
    options: EvaluateOptions, dataset: Dataset, trained: TrainedModel, compiled: Mapping[str, float]
) -> list[Check]:
    """Whether the loss is the one that training measured with the same weights and examples.

    A difference means that preprocessing or model are not what they were during training.
    """
    trained_options = trained.run.options
    same_examples = (
        trained_options.get("validation_split") == options.split
        and not trained_options.get("validation_examples")
        and trained.run.dataset_fingerprint == dataset.fingerprint
    )
    before, now = trained.info.metrics.get("val_loss"), compiled.get("loss")
    if not same_examples or before is None or now is None:
        return []
    tolerance = _AGREEMENT[str(trained_options.get("mixed_precision", "none"))]
    agrees = math.isfinite(now) and abs(now - before) <= tolerance * max(abs(before), 1e-3)
    text = f"the loss is {now:.6g} where training measured {before:.6g} with the same weights"
    if not agrees:
        text += (
            " and examples: the model module or its preprocessing is not what it was in training"
        )
    return [
        Check(
            metric="compiled_loss",
            rule="as_in_training",
            limit=before,
            slice="",
            value=now if math.isfinite(now) else None,
            outcome="passed" if agrees else "failed",
            text=text,
        )
    ]


def _data_summary(dataset: Dataset, measured: Measured) -> dict[str, Any]:
    return {
        "splits": dataset.splits,
        "num_rows": dataset.num_rows,
        "num_rejected": dataset.num_rejected,
        "label": dataset.schema.label.name,
        "classes": measured.class_counts(),
        "features": [
            {
                "name": feature.name,
                "kind": feature.kind,
                "shape": list(feature.shape),
                "count": feature.statistics.count,
                "missing": feature.statistics.missing,
                "mean": feature.statistics.mean,
                "deviation": math.sqrt(feature.statistics.variance),
                "minimum": feature.statistics.minimum,
                "maximum": feature.statistics.maximum,
                "num_distinct": feature.statistics.num_distinct,
                "histogram": [list(part) for part in feature.statistics.histogram],
                "most_frequent": [list(pair) for pair in feature.statistics.vocabulary[:5]],
            }
            for feature in dataset.schema.features
        ],
    }


def _training_summary(completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {}
    summary = dataclasses.asdict(completion)
    summary["history"] = [_finite(record) for record in completion.history]
    return summary


def _lineage(options: EvaluateOptions, dataset: Dataset, trained: TrainedModel) -> dict[str, Any]:
    run = trained.run
    return {
        "run_uri": options.run_uri,
        "run_fingerprint": run.fingerprint,
        "dataset_uri": options.dataset_uri,
        "dataset_fingerprint": dataset.fingerprint,
        "model_module": run.model_module,
        "hyperparameters": dict(run.hyperparameters),
        "training_options": dict(run.options),
        "evaluation_options": dataclasses.asdict(options),
        "versions": {
            "training": dict(run.versions),
            "evaluation": {name: importlib.metadata.version(name) for name in _VERSIONED},
        },
    }


def _finite(record: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in record.items()}


def _plain(rows: list[Any]) -> list[Any]:
    """Replace what JSON cannot say."""
    return [
        _plain(row) if isinstance(row, list) else (row if math.isfinite(row) else None)
        for row in rows
    ]
