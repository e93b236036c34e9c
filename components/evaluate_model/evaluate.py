"""The evaluation step: score a checkpoint on a split, decide, and commit the report."""

import dataclasses
import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.contracts.checkpoint import choose_step
from components.contracts.dataset import CONVERT_AGAIN, Dataset, open_dataset
from components.contracts.errors import InputError
from components.contracts.published_model import note_considered
from components.contracts.report import (
    MANIFEST_NAME,
    PAGE_NAME,
    REFERENCE_NAME,
    REPORT_NAME,
    Report,
    read_report,
    to_json_bytes,
)
from components.contracts.split import SplitReader
from components.contracts.trained_model import TrainedModel, load_trained_model
from components.contracts.training_run import TrainingRun, read_completion, read_run
from components.evaluate_model.champion import ChampionModel, open_champion
from components.evaluate_model.findings import Findings
from components.evaluate_model.measure import make_tally
from components.evaluate_model.options import EvaluateOptions
from components.evaluate_model.page.render import render
from components.evaluate_model.scoring import Scoring, logged_progress, score
from components.evaluate_model.shares import other_processes, shares_of
from components.evaluate_model.slices import SliceColumn, slice_columns
from components.evaluate_model.thresholds import parse_thresholds, sliced_columns
from components.storage.base import Store
from components.storage.commit import commit, read_manifest
from components.storage.open import open_store

# Outputs of so many first rows are kept with the report: the export must serve the same.
REFERENCE_ROWS = 256

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
    run = read_run(run_store)
    step = choose_step(run_store, options.checkpoint)
    output = open_store(output_uri)
    identity = _identity(options, dataset, run, step)
    previous = _committed(output, identity)
    if previous is not None:
        return previous
    log.info("scoring step %d on split %r of %s", step, options.split, dataset.uri)
    trained = load_trained_model(run_store, dataset, step)
    columns = slice_columns(
        dataset.schema, sliced_columns(options.slices, rules), options.slice_values
    )
    with open_champion(options.champion_root, dataset.schema) as champion:
        scoring = _score(options, store, dataset, trained, columns, champion)
    findings = Findings(options, dataset, trained, columns, scoring, champion)
    report = findings.report(rules, read_completion(run_store))
    files: Mapping[str, Path | bytes] = {
        REPORT_NAME: to_json_bytes(report),
        PAGE_NAME: render(report).encode(),
        REFERENCE_NAME: json.dumps({"outputs": _plain(scoring.reference)}).encode(),
    }
    commit(output, MANIFEST_NAME, files, {"identity": identity, "writer": "evaluate_model"})
    log.info("%s: %s", report.verdict, report.reason)
    if options.champion_root and not report.passed:  # one that passes is noted when it is published
        note_considered(open_store(options.champion_root), dataset.fingerprint, output.uri)
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


def _identity(options: EvaluateOptions, dataset: Dataset, run: TrainingRun, step: int) -> str:
    trained = [dataset.fingerprint, run.fingerprint, run.created, step]
    parts = [dataclasses.asdict(options), *trained]
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
    champion: ChampionModel,
) -> Scoring:
    total = dataset.splits[options.split]
    shares = shares_of(dataset, options.split, options.processes)
    with (
        tempfile.TemporaryDirectory(prefix="relay-evaluate-") as folder,
        other_processes(options, trained.info.step, shares[1:], Path(folder)) as others,
        logged_progress(shares[0].num_examples) as progress,
    ):
        scoring = score(
            SplitReader(store, dataset, shares[0].shards, Path(folder)),
            dataset,
            trained,
            tally=make_tally(dataset.schema, columns),
            slices=columns,
            batch_size=options.batch_size,
            num_reference=REFERENCE_ROWS,
            champion=(champion.score, make_tally(dataset.schema)) if champion.score else None,
            progress=progress,
        )
        others.add_to(scoring, champion.version)
    if scoring.tally.num_examples != total:
        raise InputError(
            f"split {options.split!r} of {dataset.uri} holds {scoring.tally.num_examples} "
            f"examples, its manifest says {total}: a shard was cut short. "
            f"{CONVERT_AGAIN}"
        )
    return scoring


def _plain(rows: list[Any]) -> list[Any]:
    """Replace what JSON cannot say."""
    return [
        _plain(row) if isinstance(row, list) else (row if math.isfinite(row) else None)
        for row in rows
    ]
