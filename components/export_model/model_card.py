"""The model card and the lineage that lie beside a version, in `assets.extra/`.

TensorFlow Serving reads `assets.extra/` only for files that it knows by name.
"""

import json
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.contracts.dataset import Feature, Schema
from components.contracts.published_model import padding_of
from components.contracts.report import Report
from components.contracts.trained_model import TrainedModel
from components.export_model.options import ExportOptions
from components.export_model.parity import Parity

EXTRA_FOLDER = "assets.extra"
CARD_NAME = f"{EXTRA_FOLDER}/model_card.md"
LINEAGE_NAME = f"{EXTRA_FOLDER}/lineage.json"

_OUTPUTS = {
    "binary": "`probability`: float32 [batch], of the class `{last}`",
    "multiclass": "`probabilities`: float32 [batch, {count}] in the order of the classes; `class`: "
    "string [batch], the most probable one",
    "regression": "`value`: float32 [batch]",
}


def lineage_of(
    options: ExportOptions, report: Report, trained: TrainedModel, parity: Parity
) -> dict[str, Any]:
    """Where a version comes from and what was proven of it; JSON values."""
    return {
        "created": time.time(),
        "run_uri": options.run_uri,
        "report_uri": options.report_uri,
        "dataset_uri": options.dataset_uri,
        "run_fingerprint": trained.run.fingerprint,
        "dataset_fingerprint": trained.run.dataset_fingerprint,
        "checkpoint_step": trained.info.step,
        "model_module": trained.run.model_module,
        "hyperparameters": dict(trained.run.hyperparameters),
        "versions": {"tensorflow": tf.__version__, "training": dict(trained.run.versions)},
        "parity": parity.to_json(),
        "metrics": {
            name: metric.value
            for name, metric in report.metrics.items()
            if metric.value is not None
        },
    }


def write_model_card(folder: Path, schema: Schema, report: Report, lineage: dict[str, Any]) -> None:
    """Write card and lineage into a SavedModel's folder."""
    Path(folder, EXTRA_FOLDER).mkdir(exist_ok=True)
    Path(folder, LINEAGE_NAME).write_text(json.dumps(lineage, indent=1), encoding="utf-8")
    Path(folder, CARD_NAME).write_text(_card(schema, report, lineage), encoding="utf-8")


def _card(schema: Schema, report: Report, lineage: dict[str, Any]) -> str:
    classes = schema.classes
    outputs = _OUTPUTS[schema.task].format(last=classes[-1] if classes else "", count=len(classes))
    inputs = "\n".join(_input_row(feature) for feature in schema.features)
    metrics = "\n".join(
        f"| {name} | {metric.value:.4f} | {_interval(metric.low, metric.high)} |"
        for name, metric in report.metrics.items()
        if metric.value is not None
    )
    hyperparameters = json.dumps(lineage["hyperparameters"])
    return f"""# {lineage["model_module"]}, step {lineage["checkpoint_step"]}

Predicts `{schema.label.name}` ({schema.task}{": " + ", ".join(classes) if classes else ""}).

## Inputs of `serving_default`

One tensor a column, raw values as in the source; the first axis is the batch.

| column | dtype | shape | a missing value is sent as |
| --- | --- | --- | --- |
{inputs}

`serving_examples` takes `examples`: string [batch], serialized tf.Example with one feature a
column; there a missing value is a feature that is left out.

## Outputs

{outputs}

## Evaluation: {report.verdict}

{report.reason} {report.num_examples:,} examples of the split `{report.split}`.

| metric | value | {report.confidence:.0%} interval |
| --- | --- | --- |
{metrics}

## Lineage

- training run: {lineage["run_uri"]} ({lineage["run_fingerprint"]})
- dataset: {lineage["dataset_uri"]} ({lineage["dataset_fingerprint"]})
- evaluation: {lineage["report_uri"]}
- hyperparameters: `{hyperparameters}`
- parity: {lineage["parity"]["rows"]} rows served equal to training within
  {lineage["parity"]["max_difference"]:.2g}
"""


def _input_row(feature: Feature) -> str:
    dtype = {"int64": "int64", "float": "float32"}.get(feature.kind, "string")
    shape = ["batch"]
    missing = "never missing in training"
    if feature.kind == "image":
        dtype, missing = "string", "cannot be missing; the bytes of a PNG or JPEG file"
    elif feature.shape:
        shape.append("longest" if feature.shape == (-1,) else str(feature.shape[0]))
    if feature.shape == (-1,):
        missing = f"{_literal(padding_of(feature))} fills up shorter lists"
    elif feature.missing_value is not None:
        missing = _literal(feature.missing_value)
    return f"| {feature.name} | {dtype} | [{', '.join(shape)}] | {missing} |"


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return "`NaN`"
    return '`""`' if value == "" else f"`{value}`"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.4f} to {high:.4f}"
