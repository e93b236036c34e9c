"""Checkpoints: how train_model commits a step, and how the other steps read one back.

Agreed between train_model, evaluate_model and export_model.

Under the training run's uri, `checkpoints/step-00001200/` holds `state-0001.safetensors`, named
by the incarnation that wrote it (every variable: `model/0000`, `optimizer/0000`, ... numbered in
the order Keras lists them, since Keras' own names depend on what else was built in the process)
and `manifest.json`, created last. Bytes that differ from the manifest make a checkpoint damaged,
and readers fall back to the one before.
"""

import errno
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save, save_file

from components.contracts.errors import FencedError, InputError
from components.storage.base import Store
from components.storage.commit import (
    commit_manifest,
    fetch,
    files_of,
    open_committed,
    put,
    read_manifest,
)
from components.storage.errors import (
    AlreadyExistsError,
    CorruptObjectError,
    ObjectNotFoundError,
)

FORMAT_VERSION = 1
FOLDER = "checkpoints"
MANIFEST_NAME = "manifest.json"

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """What the manifest of a committed checkpoint says.

    Attributes:
        step: completed training steps.
        fingerprint: of model module, hyperparameters, dataset and the options that change the
            weights.
        incarnation: fencing token of the job that wrote it.
        position: JSON values of the trainer: epoch, early stopping, learning-rate position, history
            so far.
        metrics: validation metrics by name at this step, empty if it was not validated.
    """

    step: int
    fingerprint: str
    incarnation: int
    position: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def folder_of(step: int) -> str:
    """Prefix of a checkpoint's objects, relative to the run's uri, without a trailing slash."""
    return f"{FOLDER}/step-{step:08d}"


def tombstone(buried: int) -> bytes:
    """Stands in place of a manifest that the incarnation `buried` must no longer create."""
    return json.dumps({"files": [], "buried": buried, "writer": "a newer incarnation"}).encode()


def write_state(path: Path, arrays: Arrays) -> None:
    """Write arrays to one safetensors file, not flushed to the disk: a commit's CRC covers it.

    Raises:
        OSError: the disk is full.
    """
    try:
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    except SafetensorError as error:
        if f"os error {errno.ENOSPC}" in str(error) or "StorageFull" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def state_bytes(arrays: Arrays) -> bytes:
    """What `write_state` writes, for a place that is no file."""
    return bytes(save({name: np.asarray(array, order="C") for name, array in arrays.items()}))


def read_state(path: Path) -> Arrays:
    """Read back what `write_state` wrote. Raises CorruptObjectError."""
    try:
        return dict(load_file(path))
    except (SafetensorError, ValueError) as error:
        raise CorruptObjectError(f"{path} is not a readable checkpoint state: {error}") from error


def commit_checkpoint(store: Store, info: CheckpointInfo, state: Path, *, writer: str) -> None:
    """Commit the state file of a step. `store` is opened at the training run's uri.

    Raises:
        AlreadyExistsError: this step was committed before; the message says by whom.
        FencedError: a newer incarnation has forbidden this one to commit this step.
    """
    name = folder_of(info.step)
    body = {
        "format_version": FORMAT_VERSION,
        "writer": writer,
        "created": time.time(),
        "step": info.step,
        "fingerprint": info.fingerprint,
        "incarnation": info.incarnation,
        "position": dict(info.position),
        "metrics": dict(info.metrics),
    }
    files = [put(store, f"{name}/state-{info.incarnation:04d}.safetensors", state)]
    manifest_name = f"{name}/{MANIFEST_NAME}"
    try:
        commit_manifest(store, manifest_name, files, body)
    except AlreadyExistsError:
        data, generation = store.read_versioned(manifest_name)
        buried = json.loads(data).get("buried")
        if not buried:
            raise
        if info.incarnation <= buried:
            raise FencedError(
                f"{store.uri_of(name)}: a newer incarnation than {info.incarnation} has taken over "
                "since this commit was announced"
            ) from None
        commit_manifest(store, manifest_name, files, body, replacing=generation)


def remove_checkpoint(store: Store, step: int) -> None:
    """Remove a committed step: the manifest first, so that it is never seen in part."""
    store.delete(f"{folder_of(step)}/{MANIFEST_NAME}")
    store.delete_prefix(f"{folder_of(step)}/")


def committed_steps(store: Store) -> list[int]:
    """Steps with a manifest (or a tombstone), in rising order; their data is not verified."""
    suffix = "/" + MANIFEST_NAME
    names = [found.name for found in store.list(f"{FOLDER}/step-") if found.name.endswith(suffix)]
    return sorted(int(name.removesuffix(suffix).rpartition("-")[2]) for name in names)


def read_info(store: Store, step: int) -> CheckpointInfo:
    """Read the manifest of a committed step.

    Raises:
        ObjectNotFoundError: the step is not committed.
        CorruptObjectError: the manifest is damaged.
    """
    manifest = read_manifest(store, f"{folder_of(step)}/{MANIFEST_NAME}")
    if manifest is None or manifest.get("buried"):
        raise ObjectNotFoundError(f"no committed checkpoint at {store.uri_of(folder_of(step))}")
    return _info_of(store, manifest)


def load_checkpoint(store: Store, step: int) -> tuple[CheckpointInfo, Arrays]:
    """Download and verify one committed checkpoint.

    Raises:
        ObjectNotFoundError: the step is not committed.
        CorruptObjectError: an object is missing or damaged; names it.
    """
    manifest = open_committed(store, f"{folder_of(step)}/{MANIFEST_NAME}")
    if manifest is None or manifest.get("buried"):
        raise ObjectNotFoundError(f"no committed checkpoint at {store.uri_of(folder_of(step))}")
    with tempfile.TemporaryDirectory(prefix="relay-checkpoint-") as folder:
        state = Path(folder, "state")
        for file in files_of(manifest):
            fetch(store, file, state)
        return _info_of(store, manifest), read_state(state)


def load_newest(
    store: Store, *, at_most: int | None = None
) -> tuple[CheckpointInfo, Arrays] | None:
    """Load the newest checkpoint that verifies, or None where none is committed.

    Damaged ones are passed over with a warning that names the bad object.

    Raises:
        CorruptObjectError: checkpoints are committed, but every one of them is damaged.
    """
    steps = [step for step in committed_steps(store) if at_most is None or step <= at_most]
    damage: CorruptObjectError | None = None
    for step in reversed(steps):
        try:
            return load_checkpoint(store, step)
        except CorruptObjectError as error:
            damage = error
            log.warning("checkpoint of step %d is passed over: %s", step, error)
        except ObjectNotFoundError:  # removed by retention since it was listed
            continue
    if damage is not None:
        raise damage
    return None


def choose_step(store: Store, which: str) -> int:
    """Resolve a choice of checkpoint to a committed step.

    Args:
        store: opened at the training run's uri.
        which: `newest`, `best:METRIC`, `best:-METRIC` (smaller is better) or a step number.

    Raises:
        InputError: nothing is committed, no checkpoint has that metric, or that step is not
            committed.
    """
    steps = committed_steps(store)
    if not steps:
        raise InputError(
            f"no committed checkpoint under {store.uri_of(FOLDER)}: has the training step finished?"
        )
    if which == "newest":
        return steps[-1]
    if which.startswith("best:"):
        return _best_step(store, steps, which.removeprefix("best:"))
    if which.isdigit() and int(which) in steps:
        return int(which)
    raise InputError(
        f"checkpoint {which!r} is not there: {store.uri_of(FOLDER)} holds the steps {steps}. "
        "Give one of them, 'newest', 'best:METRIC' or 'best:-METRIC' (smaller is better)"
    )


def load_model_variables(model: Any, arrays: Arrays, *, source: str) -> None:
    """Assign the checkpoint's `model/...` arrays to a freshly built model.

    Raises:
        InputError: number, shape or dtype of the variables differ: the model's code or
            hyperparameters changed.
    """
    variables = list(model.variables)
    names = sorted(name for name in arrays if name.startswith("model/"))
    if len(names) != len(variables):
        raise InputError(
            f"{source} holds {len(names)} model variables, build_model made {len(variables)}: "
            "the model module or its hyperparameters changed since training"
        )
    for name, variable in zip(names, variables, strict=True):
        array = arrays[name]
        if tuple(variable.shape) != array.shape or str(variable.dtype) != str(array.dtype):
            raise InputError(
                f"{source}: {name} ({variable.path}) is {array.dtype} {array.shape}, build_model "
                "made "
                f"{variable.dtype} {tuple(variable.shape)}: the model module or its "
                "hyperparameters changed"
            )
    for name, variable in zip(names, variables, strict=True):
        variable.assign(arrays[name])


def numbered(group: str, variables: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Pair variables with their names in a checkpoint: `group/0000`, `group/0001`, ..."""
    for index, variable in enumerate(variables):
        yield f"{group}/{index:04d}", variable


def _info_of(store: Store, manifest: Mapping[str, Any]) -> CheckpointInfo:
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CorruptObjectError(
            f"a checkpoint under {store.uri} has format version {manifest.get('format_version')}, "
            f"this code reads {FORMAT_VERSION}"
        )
    return CheckpointInfo(
        step=manifest["step"],
        fingerprint=manifest["fingerprint"],
        incarnation=manifest["incarnation"],
        position=manifest["position"],
        metrics=manifest["metrics"],
    )


def _is_committed(store: Store, step: int) -> bool:
    manifest = read_manifest(store, f"{folder_of(step)}/{MANIFEST_NAME}")
    return manifest is not None and not manifest.get("buried")


def _best_step(store: Store, steps: list[int], metric: str) -> int:
    sign = -1.0 if metric.startswith("-") else 1.0
    name = metric.removeprefix("-")
    scores = {
        step: info.metrics[name]
        for step in steps
        if name in (info := read_info(store, step)).metrics
    }
    if not scores:
        raise InputError(
            f"no checkpoint under {store.uri_of(FOLDER)} was validated with a metric {name!r}"
        )
    return max(scores, key=lambda step: (sign * scores[step], step))
