"""Where a task's data lies, from its output artifact's uri: the same rule on every backend.

Kubeflow Pipelines gives artifacts `<root>/<pipeline>/<run id>/<task>/<uuid>/<name>`, kfp.local
`<root>/<pipeline>-<time>/<task>/<name>`. Both are stable across the attempts of a task.
"""

import re
from dataclasses import dataclass

from components.storage.open import join_uri

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Uris that belong to one task.

    Attributes:
        data_uri: for the task's own, data-sized output.
        run_uri: shared by the tasks of the run; small records lie there.
        shared_uri: shared by all runs of all pipelines of this root, to find committed work again.
        task: the task's name.
        run: what the run is called: its id on Kubeflow Pipelines.
    """

    data_uri: str
    run_uri: str
    shared_uri: str
    task: str
    run: str


def place(artifact_uri: str, storage_root: str) -> Placement:
    """Place a task's data beside its artifact, or under `storage_root` if that is given."""
    parts = artifact_uri.rstrip("/").split("/")
    has_uuid = len(parts) > 5 and _UUID.fullmatch(parts[-2]) is not None
    # pipeline, run id, task, uuid, name; or pipeline-time, task, name
    own, run = (5, 2) if has_uuid else (3, 1)
    root = storage_root.rstrip("/") or "/".join(parts[:-own])
    tail = parts[-own:]
    return Placement(
        data_uri=join_uri(root, *tail) if storage_root else artifact_uri,
        run_uri=join_uri(root, *tail[:run]),
        shared_uri=join_uri(root, "relay"),
        task=tail[run],
        run=tail[run - 1],
    )
