"""The run's summary, from the records that its steps have left in storage."""

import json
from pathlib import Path
from typing import Any

from components.placement import place
from components.runner import RECORDS_FOLDER
from components.storage.open import join_uri, open_store


def write_summary(
    artifact_uri: str, storage_root: str, path: str, *, state: str, error: str
) -> dict[str, Any]:
    """Collect the records of a run's steps and write its summary.

    Args:
        artifact_uri: of the summary; says where the run lies.
        storage_root: as given to the steps.
        path: local file to write.
        state: SUCCEEDED, FAILED, ... as the platform says.
        error: the platform's message, empty if all went well.

    Returns:
        The summary: uris, verdict, metrics, figures of training, seconds by task, failed task.
    """
    store = open_store(place(artifact_uri, storage_root).run_uri)
    records = [json.loads(store.read(stat.name)) for stat in store.list(f"{RECORDS_FOLDER}/")]
    summary = summary_of(records, state=state, error=error)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return summary


def summary_of(records: list[dict[str, Any]], *, state: str, error: str) -> dict[str, Any]:
    """The summary of a run whose steps have left `records`."""
    results = {record["step"]: record.get("result", {}) for record in records}
    converted, trained = results.get("make_tfrecords", {}), results.get("train_model", {})
    evaluated, exported = results.get("evaluate_model", {}), results.get("export_model", {})
    failed = [record for record in records if "exit_code" in record]
    checkpoint = ""
    if trained and evaluated:
        step = f"step-{int(evaluated['checkpoint_step']):08d}"
        checkpoint = join_uri(trained["run_uri"], "checkpoints", step)
    return {
        "state": state,
        "error": error or "",
        "failed_task": failed[0]["task"] if failed else "",
        "dataset_uri": converted.get("dataset_uri", ""),
        "checkpoint_uri": checkpoint,
        "report_uri": evaluated.get("report_uri", ""),
        "model_uri": exported.get("model_uri", ""),
        "verdict": evaluated.get("verdict", ""),
        "reason": evaluated.get("reason", ""),
        "metrics": evaluated.get("metrics", {}),
        "train": {name: trained.get(name, 0) for name in ("steps", "restarts", "workers")},
        "goodput": trained.get("goodput", {}),
        "reused_dataset": bool(converted.get("reused", False)),
        "seconds": {record["task"]: record["seconds"] for record in records},
    }
