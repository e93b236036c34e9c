"""Proof that what is served is what was trained: outputs compared row by row in a fresh process."""

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from components.contracts.dataset import Dataset, Schema
from components.contracts.errors import PermanentError
from components.contracts.examples import decode_images, parse_batch, parse_encoded
from components.contracts.published_model import (
    EXAMPLES_INPUT,
    EXAMPLES_SIGNATURE,
    RAW_SIGNATURE,
    SCORED_OUTPUTS,
)
from components.contracts.trained_model import TrainedModel
from components.export_model import fresh_process
from components.export_model.rows import ParityRows, as_example, raw_request
from components.export_model.signature import served_outputs

# By compute precision. Half precision has 3 (bfloat16: 2) digits, and kernels for other batch sizes
# add up in another order.
TOLERANCES = {"none": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
# Rows that are also sent one by one.
SINGLE_ROWS = 6
FRESH_PROCESS_SECS = 600

log = logging.getLogger("relay.export")

Outputs = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What the comparison found.

    Attributes:
        rows: compared, the altered copies included.
        max_difference: largest difference of any output, relative to outputs larger than 1.
        tolerance: that it stayed within.
    """

    rows: int
    max_difference: float
    tolerance: float

    def to_json(self) -> dict[str, Any]:
        """For results and the model card."""
        return {
            "rows": self.rows,
            "max_difference": self.max_difference,
            "tolerance": self.tolerance,
        }


class SkewError(PermanentError):
    """What would be served is not what was trained or evaluated."""


def check_parity(
    folder: Path,
    trained: TrainedModel,
    dataset: Dataset,
    rows: ParityRows,
    *,
    reference: list[Any],
    tolerance: float = 0.0,
) -> Parity:
    """Compare the SavedModel in `folder` with the training path and the evaluation.

    Args:
        folder: of the SavedModel.
        trained: the model it was made from.
        dataset: of the rows.
        rows: to compare on.
        reference: outputs that the evaluation has seen for the first rows.
        tolerance: 0 chooses by the compute precision.

    Raises:
        SkewError: a difference above the tolerance; shows the worst row.
        PermanentError: the model does not load or answer in a fresh process.
    """
    precision = str(trained.run.options.get("mixed_precision", "none"))
    comparison = _Comparison(tolerance or TOLERANCES[precision], rows)
    expected = training_outputs(trained, dataset, rows)
    name = next(iter(expected))
    known = np.array(reference[: len(rows.records)], np.float64)
    if len(known):
        seen = {name: expected[name][: len(known)]}
        comparison.compare("the evaluation", {name: known}, "the training path now", seen)
    answers = answers_in_fresh_process(folder, _requests(dataset.schema, rows))
    whole = len(rows.rows)
    comparison.compare("the training path", expected, "serving_default", answers[0])
    comparison.compare("the training path", expected, "serving_examples", answers[1])
    for answer, row in zip(answers[2:], _single_rows(whole), strict=True):
        one = {key: value[row : row + 1] for key, value in expected.items()}
        comparison.compare("the training path", one, "a batch of one", answer, first=row)
    log.info("%d rows served equal to training within %.2g", whole, comparison.worst)
    return Parity(rows=whole, max_difference=comparison.worst, tolerance=comparison.tolerance)


def training_outputs(trained: TrainedModel, dataset: Dataset, rows: ParityRows) -> Outputs:
    """Outputs as training makes them: preprocessing inside tf.data, then the model.

    Real rows are read as the dataset holds them, altered ones as Examples of single columns.
    """
    schema = dataset.schema
    real = tf.data.Dataset.from_tensors(rows.records).map(
        lambda records: _without_label(parse_batch(records, schema, dataset.layout), schema)
    )
    extra = [as_example(schema, row) for row in rows.rows[len(rows.records) :]]
    batches = [real]
    if extra:
        batches.append(
            tf.data.Dataset.from_tensors(extra).map(
                lambda records: decode_images(
                    parse_encoded(records, schema, with_label=False), schema
                )
            )
        )
    forward = tf.function(lambda inputs: trained.named(inputs))
    found: list[Outputs] = []
    for batch in batches:
        for inputs in batch.map(trained.preprocess):
            named = forward(inputs)
            scored, *others = named
            names = tf.constant(list(schema.classes)) if schema.classes else None
            served = served_outputs(named[scored], schema, names)
            found.append({**served, **{other: named[other] for other in others}})
    return {name: np.concatenate([outputs[name].numpy() for outputs in found]) for name in found[0]}


def answers_in_fresh_process(folder: Path, requests: list[dict[str, Any]]) -> list[Outputs]:
    """Load the SavedModel where only TensorFlow can be imported, and ask it.

    Raises:
        PermanentError: it failed there; the message ends with what that process said.
    """
    with tempfile.TemporaryDirectory(prefix="relay-parity-") as work:
        asked, answered = Path(work, "requests"), Path(work, "answers")
        asked.mkdir()
        answered.mkdir()
        for index, request in enumerate(requests):
            Path(asked, f"{index:04d}.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-I", fresh_process.__file__, folder, asked, answered]
        ended = subprocess.run(
            [str(part) for part in command],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=FRESH_PROCESS_SECS,
        )
        if ended.returncode:
            raise PermanentError(
                "the exported model fails in a process that has only TensorFlow:\n"
                + "\n".join(ended.stderr.strip().splitlines()[-6:])
            )
        return [_answer(path) for path in sorted(answered.glob("*.json"))]


class _Comparison:
    def __init__(self, tolerance: float, rows: ParityRows) -> None:
        self.tolerance = tolerance
        self.worst = 0.0
        self._rows = rows

    def compare(
        self, left_name: str, left: Outputs, right_name: str, right: Outputs, *, first: int = 0
    ) -> None:
        """Raise SkewError if the outputs differ; `first` is the number of the first row."""
        if left.keys() != right.keys():
            raise SkewError(
                f"{right_name} has the outputs {sorted(right)}, {left_name} has {sorted(left)}"
            )
        for name, expected in left.items():
            found = right[name]
            if expected.shape != found.shape:
                raise SkewError(
                    f"{name} of {right_name} has shape {list(found.shape)}, of {left_name} "
                    f"{list(expected.shape)}"
                )
            if expected.dtype.kind in "SOU":
                row, difference = _worst_class(left, right, name)
            else:
                row, difference = _worst_row(expected, found)
            self.worst = max(self.worst, difference)
            if difference > self.tolerance:
                raise SkewError(
                    f"{name} of {right_name} differs from {left_name} by {difference:.3g}, more "
                    f"than {self.tolerance:g}, so this model is not published. The worst is "
                    f"{self._rows.describe(first + row)}, where {left_name} gives "
                    f"{_plain(expected[row])} and {right_name} {_plain(found[row])}. Training and "
                    "serving must run the same preprocessing and model code"
                )


def _worst_row(expected: Any, found: Any) -> tuple[int, float]:
    if not len(expected):
        return 0, 0.0
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.abs(expected - found) / np.maximum(np.abs(expected), 1.0)
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    gap = np.where(same, 0.0, np.where(np.isfinite(gap), gap, np.inf)).reshape(len(gap), -1).max(1)
    return int(gap.argmax()), float(gap.max())


def _worst_class(left: Outputs, right: Outputs, name: str) -> tuple[int, float]:
    """A name that differs although the same class has the highest probability on both sides."""
    different = left[name] != right[name]
    if SCORED_OUTPUTS["multiclass"] in left:
        best = [side[SCORED_OUTPUTS["multiclass"]].argmax(1) for side in (left, right)]
        different &= best[0] == best[1]
    return int(different.argmax()) if len(different) else 0, np.inf if different.any() else 0.0


def _requests(schema: Schema, rows: ParityRows) -> list[dict[str, Any]]:
    examples = [as_example(schema, row).hex() for row in rows.rows]
    inputs = {
        EXAMPLES_INPUT: {"dtype": "string", "shape": [len(examples)], "values": examples},
    }
    singles = [
        {"signature": RAW_SIGNATURE, "inputs": raw_request(schema, [rows.rows[row]])}
        for row in _single_rows(len(rows.rows))
    ]
    return [
        {"signature": RAW_SIGNATURE, "inputs": raw_request(schema, rows.rows)},
        {"signature": EXAMPLES_SIGNATURE, "inputs": inputs},
        *singles,
    ]


def _single_rows(count: int) -> list[int]:
    """Row numbers spread over all rows, the altered copies at the end included."""
    return sorted({int(number) for number in np.linspace(0, count - 1, min(SINGLE_ROWS, count))})


def _without_label(columns: dict[str, Any], schema: Schema) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name != schema.label.name}


def _answer(path: Path) -> Outputs:
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    outputs: Outputs = {}
    for name, value in data.items():
        values, dtype = value["values"], value["dtype"]
        if dtype == "string":
            values, dtype = [bytes.fromhex(item) for item in values], object
        outputs[name] = np.array(values, dtype).reshape(value["shape"])
    return outputs


def _plain(value: Any) -> str:
    return str(value.tolist() if isinstance(value, np.ndarray) else value)
