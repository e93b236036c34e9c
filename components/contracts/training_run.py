"""What a training run leaves for its readers beside the checkpoints.

Agreed between train_model, which writes, and evaluate_model, export_model and the summary.

Under the run's uri: `run.json` (what is trained, created once at the start) and `complete.json`
(how it ended, created once when all steps are done and the last checkpoint is committed; absent
means not finished).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.errors import ObjectNotFoundError

RUN_NAME = "run.json"
COMPLETE_NAME = "complete.json"


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What is trained.

    Attributes:
        model_module: dotted path of the user's module.
        hyperparameters: passed to `build_model`.
        dataset_uri: the committed dataset.
        dataset_fingerprint: its fingerprint.
        fingerprint: over module source, hyperparameters, dataset and the options that change the
            weights.
        created: when the run was first started, in seconds since the epoch.
        options: every training option by name, for the lineage.
        versions: package versions by name.
    """

    model_module: str
    hyperparameters: Mapping[str, Any]
    dataset_uri: str
    dataset_fingerprint: str
    fingerprint: str
    created: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How a run ended.

    Attributes:
        step: completed steps; its checkpoint is committed.
        num_epochs: completed epochs.
        reason: `all steps done` or `early stopping: ...`.
        num_workers: workers of the last incarnation.
        num_restarts: restarts over the whole run.
        goodput: seconds by bucket: productive, start_up, data_wait, checkpoint_wait, restore, lost,
            stalled.
        history: one record a logging interval, each step in exactly one record:
            {"step", "time" (seconds since the epoch), "loss", "learning_rate", metric names...};
            validation records have the keys `val_loss`, `val_<metric>` instead.
        restarts: {"step" (resumed at), "time", "worker", "cause"} for each restart.
    """

    step: int
    num_epochs: int
    reason: str
    num_workers: int
    num_restarts: int
    goodput: Mapping[str, float]
    history: tuple[Mapping[str, float], ...] = ()
    restarts: tuple[Mapping[str, Any], ...] = ()


def to_json_bytes(value: TrainingRun | Completion) -> bytes:
    """Serialize for `run.json` or `complete.json`."""
    return json.dumps(dataclasses.asdict(value), indent=1, allow_nan=False).encode()


def read_run(store: Store) -> TrainingRun:
    """Read `run.json` at the run's uri. Raises InputError if no training was started there."""
    try:
        return TrainingRun(**json.loads(store.read(RUN_NAME)))
    except ObjectNotFoundError as error:
        raise InputError(
            f"{store.uri} is not a training run: {store.uri_of(RUN_NAME)} is missing"
        ) from error


def read_completion(store: Store) -> Completion | None:
    """Read `complete.json`, or None while the run is not finished."""
    try:
        data = json.loads(store.read(COMPLETE_NAME))
    except ObjectNotFoundError:
        return None
    return Completion(
        **{**data, "history": tuple(data["history"]), "restarts": tuple(data["restarts"])}
    )
