"""What the launcher sees of a job: a few facts out of the cluster's JSON objects."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from components.train_model.launch.tfjob import (
    CONTAINER,
    FINGERPRINT_ANNOTATION,
    URI_ANNOTATION,
)

_INDEX_LABEL = "training.kubeflow.org/replica-index"
_PULL_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
    | {"ImageInspectError", "RegistryUnavailable"}
)
_CONFIG_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A TFJob.

    Attributes:
        uid: of the object.
        run_uri: of its annotation.
        fingerprint: of its annotation.
        deleting: it is being deleted.
        state: conditions are not ordered, so each is looked for.
        message: of the condition that gives the state.
    """

    uid: str
    run_uri: str
    fingerprint: str
    deleting: bool
    state: Literal["running", "succeeded", "failed"]
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A worker's pod.

    Attributes:
        name: of the pod.
        uid: of the object.
        worker: its index.
        node: it is bound to, "" for none.
        running: its container runs.
        grace_over: seconds by which a deleted pod has outlived its grace period; negative before,
            and for a pod that is not being deleted.
        deleting: it is being deleted.
        exit_code: of its ended container, None while there is none.
        message: the ended container's last words, or the pod's.
        reason: OOMKilled, Error, Evicted, ...
        unschedulable: why no node takes it, "" if one did.
        image_trouble: why its image is not there, "".
        config_trouble: why its container cannot be made, "".
    """

    name: str
    uid: str
    worker: int
    node: str = ""
    running: bool = False
    grace_over: float = -1.0
    deleting: bool = False
    exit_code: int | None = None
    message: str = ""
    reason: str = ""
    unschedulable: str = ""
    image_trouble: str = ""
    config_trouble: str = ""


def job_of(data: Mapping[str, Any]) -> Job:
    """Read a TFJob."""
    metadata = data["metadata"]
    annotations = metadata.get("annotations") or {}
    true = {
        condition["type"]: condition.get("message", "")
        for condition in (data.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "True"
    }
    state: Literal["running", "succeeded", "failed"] = "running"
    if "Failed" in true:
        state = "failed"
    elif "Succeeded" in true:
        state = "succeeded"
    return Job(
        uid=metadata["uid"],
        run_uri=annotations.get(URI_ANNOTATION, ""),
        fingerprint=annotations.get(FINGERPRINT_ANNOTATION, ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        state=state,
        message=true.get("Failed") or true.get("Succeeded") or "",
    )


def pods_of(items: Sequence[Mapping[str, Any]], now: datetime.datetime) -> tuple[Pod, ...]:
    """Read a job's pods; `now` in UTC."""
    return tuple(sorted((_pod(item, now) for item in items), key=lambda pod: pod.worker))


def _pod(data: Mapping[str, Any], now: datetime.datetime) -> Pod:
    metadata, status = data["metadata"], data.get("status") or {}
    container = _container_state(status)
    ended = container.get("terminated") or {}
    waiting = container.get("waiting") or {}
    trouble = f"{waiting.get('reason', '')}: {waiting.get('message', '')}"
    deleted = metadata.get("deletionTimestamp")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        worker=int((metadata.get("labels") or {}).get(_INDEX_LABEL, -1)),
        node=(data.get("spec") or {}).get("nodeName") or "",
        running="running" in container and container["running"] is not None,
        deleting=bool(deleted),
        # The time stamp is the moment at which the grace period ends.
        grace_over=(now - _moment(deleted)).total_seconds() if deleted else -1.0,
        exit_code=ended.get("exitCode"),
        message=ended.get("message") or status.get("message") or "",
        reason=ended.get("reason") or status.get("reason") or "",
        unschedulable=_unschedulable(status),
        image_trouble=trouble if waiting.get("reason") in _PULL_REASONS else "",
        config_trouble=trouble if waiting.get("reason") in _CONFIG_REASONS else "",
    )


def _container_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER:
            return container.get("state") or {}
    return {}


def _unschedulable(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
