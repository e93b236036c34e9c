"""The export step: compose, prove, publish, promote."""

import hashlib
import json
import logging
import secrets
import tempfile
from pathlib import Path
from typing import Any

from components.contracts.dataset import Dataset, open_dataset
from components.contracts.errors import InputError
from components.contracts.published_model import (
    SCHEMA_NAME,
    manifest_name,
    note_considered,
    read_champion,
)
from components.contracts.report import REFERENCE_NAME, Report, read_report
from components.contracts.trained_model import TrainedModel, load_trained_model
from components.contracts.training_run import TrainingRun, read_run
from components.export_model.champion import (
    Candidate,
    apply_retention,
    check_metric,
    promote,
    write_serving_config,
)
from components.export_model.keras_copy import write_keras_copy
from components.export_model.model_card import lineage_of, write_model_card
from components.export_model.options import ExportOptions
from components.export_model.parity import check_parity
from components.export_model.publish import (
    FORMAT_VERSION,
    find_published,
    publish,
    take_version,
)
from components.export_model.rows import parity_rows
from components.export_model.serving_config import MODEL_NAME
from components.export_model.signature import Served, raw_inputs, save
from components.export_model.warm_up import write_warm_up
from components.storage.base import Store
from components.storage.commit import read_manifest
from components.storage.open import open_store

DEFAULT_METRICS = {"binary": "auc", "multiclass": "accuracy", "regression": "-rmse"}

log = logging.getLogger("relay.export")


def export_model(options: ExportOptions, export_root: str) -> dict[str, Any]:
    """Publish the evaluated checkpoint under `export_root`; a published one is found again.

    Returns:
        {"model_uri", "version", "promoted", "champion", "parity"}.

    Raises:
        InputError: something to read is missing or damaged, the evaluation did not pass or was of
            another model, or an option that cannot work.
        SkewError: what would be served is not what was trained.
        PermanentError: user code failed.
    """
    root = open_store(export_root)
    report, reference = _read_evaluation(options)
    score = 0.0
    if options.promote:
        score = _score(report, options)
        check_metric(root, read_champion(root)[0], promote_metric(report, options))
    store, run_store = open_store(options.dataset_uri), open_store(options.run_uri)
    dataset, run = open_dataset(store), read_run(run_store)
    _check_same_model(options, report, dataset, run)
    identity = _identity(run, report)
    version = find_published(root, identity)
    if version is None:
        trained = load_trained_model(run_store, dataset, report.checkpoint_step)
        version = _publish(options, root, store, dataset, trained, report, reference, identity)
    else:
        log.info("version %d at %s is this model already", version, root.uri)
    return _finish(options, root, version, report, score)


def _publish(
    options: ExportOptions,
    root: Store,
    store: Store,
    dataset: Dataset,
    trained: TrainedModel,
    report: Report,
    reference: list[Any],
    identity: str,
) -> int:
    with tempfile.TemporaryDirectory(prefix="relay-export-") as work:
        folder = Path(work, "model")
        save(Served(trained, dataset.schema), folder)
        cache = Path(work, "cache")
        rows = parity_rows(store, dataset, report.split, options.parity_rows, cache)
        parity = check_parity(
            folder, trained, dataset, rows, reference=reference, tolerance=options.tolerance
        )
        lineage = lineage_of(options, report, trained, parity)
        if options.keras_copy:
            lineage["keras_copy"] = not write_keras_copy(folder, trained, Path(work))
        write_model_card(folder, dataset.schema, report, lineage)
        Path(folder, SCHEMA_NAME).write_text(json.dumps(dataset.schema.to_json()), encoding="utf-8")
        write_warm_up(folder, dataset.schema, rows, MODEL_NAME)
        claim = take_version(root, identity, secrets.token_hex(8))
        body = {
            "format_version": FORMAT_VERSION,
            "writer": "export_model",
            "identity": identity,
            "version": claim.version,
            "task": report.task,
            "classes": list(report.classes),
            "inputs": {
                name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
                for name, spec in raw_inputs(dataset.schema).items()
            },
            **lineage,
        }
        log.info("publishing version %d to %s", claim.version, root.uri)
        publish(root, claim, folder, body)
        return claim.version


def _finish(
    options: ExportOptions, root: Store, version: int, report: Report, score: float
) -> dict[str, Any]:
    manifest = read_manifest(root, manifest_name(version)) or {}
    model_uri = root.uri_of(str(version))
    promoted, (champion, _) = False, read_champion(root)
    if options.promote:
        compared = report.champion
        metric = promote_metric(report, options)
        promoted, champion = promote(
            root,
            Candidate(
                version=version,
                model_uri=model_uri,
                metric=metric,
                score=score,
                report_uri=options.report_uri,
                champion_scores={int(compared["version"]): compared["metrics"][metric.lstrip("-")]}
                if metric.lstrip("-") in compared.get("metrics", {})
                else {},
            ),
        )
        log.info(
            "version %d %s",
            version,
            "is the champion" if promoted else f"does not beat version {champion.version}",
        )
    write_serving_config(root)
    apply_retention(root, options.keep_versions)
    note_considered(root, str(manifest.get("dataset_fingerprint", "")), options.report_uri)
    return {
        "model_uri": model_uri,
        "version": version,
        "promoted": promoted,
        "champion": {} if champion is None else champion.to_json(),
        "parity": manifest.get("parity", {}),
    }


def promote_metric(report: Report, options: ExportOptions) -> str:
    """The metric that decides about promotion."""
    return options.promote_metric or DEFAULT_METRICS[report.task]


def _read_evaluation(options: ExportOptions) -> tuple[Report, list[Any]]:
    store = open_store(options.report_uri)
    report = read_report(store)
    if options.require_passed and not report.passed:
        raise InputError(
            f"the evaluation at {store.uri} says {report.verdict!r}: {report.reason} Such a model "
            "is not exported; to do it all the same, set require_passed to false"
        )
    return report, list(json.loads(store.read(REFERENCE_NAME))["outputs"])


def _score(report: Report, options: ExportOptions) -> float:
    metric = promote_metric(report, options)
    found = report.metrics.get(metric.removeprefix("-"))
    if found is None or found.value is None:
        known = sorted(name for name, value in report.metrics.items() if value.value is not None)
        raise InputError(
            f"option promote_metric: the report has no value of {metric.removeprefix('-')!r}; it "
            f"has {', '.join(known)}"
        )
    return found.value


def _check_same_model(
    options: ExportOptions, report: Report, dataset: Dataset, run: TrainingRun
) -> None:
    """The report must be of this run, step and dataset."""
    lineage = report.lineage
    for what, mine, evaluated in (
        ("checkpoint step", options.checkpoint or str(report.checkpoint_step),
         str(report.checkpoint_step)),
        ("training run (fingerprint)", run.fingerprint, lineage.get("run_fingerprint")),
        ("dataset (fingerprint)", dataset.fingerprint, lineage.get("dataset_fingerprint")),
    ):  # fmt: skip
        if mine != evaluated:
            raise InputError(
                f"the evaluation at {options.report_uri} is of {what} {evaluated}, but {mine} is "
                "to be exported: evaluate that one first"
            )


def _identity(run: TrainingRun, report: Report) -> str:
    parts = [FORMAT_VERSION, run.fingerprint, run.created, report.checkpoint_step]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
