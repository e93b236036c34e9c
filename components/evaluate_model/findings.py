"""From a finished scoring to the report: checks, verdict, and the facts beside the numbers."""

import dataclasses
import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.contracts.dataset import Dataset
from components.contracts.report import Check, Metric, Report
from components.contracts.trained_model import TrainedModel
from components.contracts.training_run import Completion
from components.evaluate_model.champion import ChampionModel
from components.evaluate_model.measure import Measured
from components.evaluate_model.options import EvaluateOptions
from components.evaluate_model.scoring import Scoring
from components.evaluate_model.slices import SliceColumn
from components.evaluate_model.thresholds import Rule, check_rules, decide

# Relative difference allowed between the loss that training measured and ours: the sums are taken
# in another order; under mixed precision the last layer is computed more exactly here.
_AGREEMENT = {"none": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
# Set when an image is built.
CODE_VERSION_VARIABLE = "RELAY_CODE_VERSION"
_VERSIONED = ("tensorflow", "keras", "numpy")


class Findings:
    """What an evaluation has found."""

    def __init__(
        self,
        options: EvaluateOptions,
        dataset: Dataset,
        trained: TrainedModel,
        columns: tuple[SliceColumn, ...],
        scoring: Scoring,
        champion: ChampionModel,
    ) -> None:
        self._options, self._dataset, self._trained = options, dataset, trained
        self._scoring, self._champion = scoring, champion
        self._compiled = scoring.compiled.result()
        self._measured = Measured(dataset.schema, scoring.tally, options.confidence)
        self._changes = self._compared()
        self._metrics = self._all_metrics()
        self._slices = self._measured.slices(columns)

    def report(self, rules: Sequence[Rule], completion: Completion | None) -> Report:
        """Decide, and put everything into a report.

        Raises:
            InputError: a rule names a metric, column or value that is not there.
        """
        measured, options, schema = self._measured, self._options, self._dataset.schema
        checks = self._checks(rules)
        tally = self._scoring.tally
        verdict, reason = decide(
            checks,
            num_examples=tally.num_examples,
            num_not_finite=tally.num_not_finite,
        )
        return Report(
            verdict=verdict,
            reason=reason,
            task=schema.task,
            classes=schema.classes,
            split=options.split,
            num_examples=tally.num_examples,
            checkpoint_step=self._trained.info.step,
            confidence=options.confidence,
            metrics=self._metrics,
            checks=tuple(checks),
            slices=self._slices,
            curves=measured.curves(),
            confusion_matrix=measured.confusion_matrix(),
            calibration=measured.calibration(),
            threshold_table=measured.threshold_table(),
            scores=measured.scores(),
            residuals=measured.residuals(),
            data=self._data_summary(),
            training=_training_summary(completion),
            champion=self._champion_summary(),
            lineage=self._lineage(),
            created=time.time(),
        )

    def _all_metrics(self) -> dict[str, Metric]:
        champion = self._of_champion.values if self._of_champion else {}
        metrics = {
            name: dataclasses.replace(metric, champion=champion.get(name))
            for name, metric in self._measured.metrics().items()
        }
        for name, value in self._compiled.items():
            metrics[f"compiled_{name}"] = Metric(value=value if math.isfinite(value) else None)
        return metrics

    def _compared(self) -> dict[str, Metric]:
        """Differences to the champion by metric, with paired intervals."""
        tally = self._scoring.champion
        self._of_champion = (
            Measured(self._dataset.schema, tally, self._options.confidence) if tally else None
        )
        if self._of_champion is None:
            return {}
        intervals = self._measured.change_intervals(self._of_champion)
        changes = {}
        for name, value in self._measured.values.items():
            if name in self._of_champion.values:
                low, high = intervals.get(name, (None, None))
                difference = value - self._of_champion.values[name]
                changes[name] = Metric(value=difference, low=low, high=high)
        return changes

    def _checks(self, rules: Sequence[Rule]) -> list[Check]:
        tally = self._scoring.tally
        checks = check_rules(
            rules,
            self._metrics,
            self._slices,
            num_examples=tally.num_examples,
            changes=self._changes,
            why_undefined=self._why_undefined(),
            why_no_champion=self._champion.problem,
        )
        return [*checks, *self._agreement(), *self._not_finite()]

    def _why_undefined(self) -> str:
        counts = self._measured.class_counts()
        present = [name for name, count in counts.items() if count]
        if len(present) == 1:
            return f"every example of the split has the label {present[0]!r}"
        return "too few examples of the split count for it"

    def _agreement(self) -> list[Check]:
        """Whether the loss is the one that training measured with the same weights and examples.

        A difference means that preprocessing or model are not what they were during training.
        """
        trained_with = self._trained.run.options
        same_examples = trained_with.get(
            "validation_split"
        ) == self._options.split and not trained_with.get("validation_examples")
        before = self._trained.info.metrics.get("val_loss")
        now = self._compiled.get("loss")
        if not same_examples or before is None or now is None:
            return []
        tolerance = _AGREEMENT[str(trained_with.get("mixed_precision", "none"))]
        agrees = math.isfinite(now) and abs(now - before) <= tolerance * max(abs(before), 1e-3)
        text = f"The loss is {now:.6g} where training measured {before:.6g} with the same weights"
        if not agrees:
            text += (
                " and examples: the model module or its preprocessing is not what it was in "
                "training"
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

    def _not_finite(self) -> list[Check]:
        return [
            Check(
                metric=f"compiled_{name}",
                rule="finite",
                limit=0.0,
                slice="",
                value=None,
                outcome="failed",
                text=f"The compiled {name} is {value}, not a finite number",
            )
            for name, value in self._compiled.items()
            if not math.isfinite(value)
        ]

    def _champion_summary(self) -> dict[str, Any]:
        champion = self._champion
        if not champion.version:
            return {}
        known = {"version": champion.version, "model_uri": champion.model_uri}
        if self._of_champion is None:
            return {**known, "problem": champion.problem}
        changes = {name: dataclasses.asdict(metric) for name, metric in self._changes.items()}
        return {**known, "metrics": dict(self._of_champion.values), "changes": changes}

    def _data_summary(self) -> dict[str, Any]:
        dataset = self._dataset
        return {
            "splits": dataset.splits,
            "num_rows": dataset.num_rows,
            "num_rejected": dataset.num_rejected,
            "label": dataset.schema.label.name,
            "classes": self._measured.class_counts(),
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

    def _lineage(self) -> dict[str, Any]:
        run, options = self._trained.run, self._options
        return {
            "run_uri": options.run_uri,
            "run_fingerprint": run.fingerprint,
            "dataset_uri": options.dataset_uri,
            "dataset_fingerprint": self._dataset.fingerprint,
            "model_module": run.model_module,
            "code_version": code_version(),
            "hyperparameters": dict(run.hyperparameters),
            "training_options": dict(run.options),
            "evaluation_options": _lists(dataclasses.asdict(options)),
            "versions": {
                "training": dict(run.versions),
                "evaluation": {name: importlib.metadata.version(name) for name in _VERSIONED},
            },
        }


def _training_summary(completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {}
    summary = dataclasses.asdict(completion)
    summary["history"] = [_finite(record) for record in completion.history]
    return dict(_lists(summary))


def code_version() -> str:
    """Version of this code: what the image was built with, or the commit of the checkout."""
    built = os.environ.get(CODE_VERSION_VARIABLE)
    if built:
        return built
    found = (
        subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
        if shutil.which("git")
        else None
    )
    return found.stdout.strip() if found and found.returncode == 0 else "unknown"


def _lists(value: Any) -> Any:
    """The value as JSON would give it back: lists in place of tuples."""
    return json.loads(json.dumps(value, allow_nan=False))


def _finite(record: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in record.items()}
