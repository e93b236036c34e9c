"""The training step: checks what was asked for, starts or continues the run, reports its end."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import time
from pathlib import Path
from typing import Any

from components.contracts.command_line import options_from
from components.contracts.dataset import Dataset, open_dataset
from components.contracts.errors import InputError, PermanentError
from components.contracts.training_run import (
    RUN_NAME,
    Completion,
    TrainingRun,
    read_completion,
    read_run,
    to_json_bytes,
)
from components.storage.base import Store
from components.storage.errors import AlreadyExistsError
from components.storage.open import open_store
from components.train_model.launch.local import launch_local
from components.train_model.launch.options import KubernetesOptions
from components.train_model.options import TrainOptions, weight_options
from components.train_model.warm_start import with_warm_start

log = logging.getLogger("relay.launcher")

_VERSIONED = ("tensorflow", "keras", "numpy", "kfp")


def train_model(options: TrainOptions, output_uri: str) -> Completion:
    """Train at `output_uri`; a run that was begun there with the same fingerprint is continued.

    Raises:
        InputError: dataset, module or options cannot work, or another run lies at `output_uri`.
        RelayError: training failed for good; the message says why.
    """
    place = _place(options)
    dataset = open_dataset(open_store(options.dataset_uri))
    _check_data(options, dataset)
    store = open_store(output_uri)
    options = with_warm_start(options, store, dataset.schema)
    run = _begin(store, _describe(options, dataset))
    completion = read_completion(store)
    if completion is None:
        if place is not None:
            from components.train_model.launch.kubernetes import launch_on_kubernetes

            launch_on_kubernetes(options, place, run, output_uri)
        else:
            launch_local(options, output_uri)
        completion = read_completion(store)
    if completion is None:
        raise PermanentError(f"all workers ended with 0, but {output_uri} has no complete.json")
    log.info("trained %d steps (%s)", completion.step, completion.reason)
    return completion


def result_of(completion: Completion, run_uri: str) -> dict[str, Any]:
    """What the step's `--result` file says."""
    validations = [record for record in completion.history if "val_loss" in record]
    last = validations[-1] if validations else {}
    return {
        "run_uri": run_uri,
        "steps": completion.step,
        "epochs": completion.num_epochs,
        "workers": completion.num_workers,
        "restarts": completion.num_restarts,
        "reason": completion.reason,
        "goodput": dict(completion.goodput),
        "metrics": {name: value for name, value in last.items() if name.startswith("val_")},
    }


def _check_data(options: TrainOptions, dataset: Dataset) -> None:
    count = sum(shard.num_records for shard in dataset.shards_of(options.split))
    if count < options.batch_size:
        raise InputError(
            f"split {options.split!r} of {dataset.uri} has {count} examples, fewer than batch_size "
            f"{options.batch_size}: lower batch_size or add data"
        )
    if options.validation_split:
        dataset.shards_of(options.validation_split)


def _describe(options: TrainOptions, dataset: Dataset) -> TrainingRun:
    source = _source_digest(options.model_module) or str(options.kubernetes.get("image", ""))
    parts = [weight_options(options), dataset.fingerprint, source]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return TrainingRun(
        model_module=options.model_module,
        hyperparameters=dict(options.hyperparameters),
        dataset_uri=options.dataset_uri,
        dataset_fingerprint=dataset.fingerprint,
        fingerprint=digest,
        created=time.time(),
        options=dataclasses.asdict(options),
        versions={name: importlib.metadata.version(name) for name in _VERSIONED if _has(name)},
    )


def _place(options: TrainOptions) -> KubernetesOptions | None:
    """Where on a cluster to train; None for this machine."""
    if options.launcher == "kubernetes":
        return options_from(KubernetesOptions, options.kubernetes)
    if not _has("tensorflow"):
        raise InputError(
            "launcher=local trains in this process' own environment, which has no TensorFlow. Use "
            "launcher=kubernetes, or run the step in Relay's TensorFlow image"
        )
    return None


def _begin(store: Store, run: TrainingRun) -> TrainingRun:
    """Create `run.json`, or make sure that the one there describes the same run; the one there."""
    try:
        store.create(RUN_NAME, to_json_bytes(run))
        return run
    except AlreadyExistsError:
        previous = read_run(store)
    if previous.fingerprint == run.fingerprint:
        log.info("continuing the run at %s", store.uri)
        return previous
    changed = [
        name
        for name, value in run.options.items()
        if previous.options.get(name) != json.loads(json.dumps(value))
    ]
    what = f"options {', '.join(changed)}" if changed else "the model module's source or the data"
    raise InputError(
        f"{store.uri} holds another run: {what} changed since it was begun. "
        "Train to a new output uri, or delete that one"
    )


def _source_digest(module: str) -> str:
    """Digest of the user's module, without importing it; "" where it is not installed here."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    if found is None or not found.origin or not Path(found.origin).is_file():
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
