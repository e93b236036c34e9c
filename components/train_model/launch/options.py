"""How a training job is placed and watched on a cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from components.contracts.errors import InputError

# Grammar of github.com/distribution/reference: [registry/]path[:tag][@digest].
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """Where the workers run, as what, and how long their troubles are borne.

    Attributes:
        image: of the workers: Relay's TensorFlow image or one made from it.
        namespace: of the job; empty: the launcher's own.
        image_pull_policy: Always, IfNotPresent or Never.
        image_pull_secrets: names of secrets.
        service_account: of the workers, for workload identity; empty: the namespace's default. No
            token of it is mounted.
        resources: requests and limits of a worker, as in a container
            ({"limits": {"nvidia.com/gpu": "1"}}).
        node_selector: node labels that a worker needs.
        tolerations: as in a pod.
        affinity: as in a pod.
        env: environment variables as in a container, secret and config map references included.
        volumes: as in a pod.
        volume_mounts: as in a container.
        labels: further labels of job and pods.
        annotations: further annotations of the pods.
        priority_class: of the workers.
        spot: gke: run on spot nodes of Google Kubernetes Engine; none.
        gang: start all workers or none, by this scheduler (volcano, or the name that the scheduler
            plugins have); none.
        queue: of the gang scheduler.
        storage_secret: secret with keys accesskey and secretkey for s3:// and minio:// runs; empty:
            mlpipeline-minio-artifact for minio://, none for other uris.
        work_medium: disk or memory (tmpfs, counts as memory): holds shards and local checkpoints.
        work_size: size limit of that volume, a Kubernetes quantity; empty: none.
        dynamic: make the job dynamic, so that the operator replaces a drained worker instead of
            failing the job.
        ttl_secs: a finished job is removed after so long.
        deadline_secs: the run is ended when it has taken so long, by the launcher's own clock, all
            restarts together; 0: never.
        pending_secs: a worker may wait for a node, for quota or for its image so long.
        stall_secs: the job is ended after so long without a step, a checkpoint or a restart.
        unreachable_secs: a worker on a node that does not answer is replaced after so long.
        lost_node_secs: a worker that should have ended is removed by force so long after its grace
            period.
        max_recreations: how often the job is made again without a newly committed checkpoint.
        max_pod_starts: pods of one worker without a newly committed checkpoint.
        lease_secs: workers end by themselves when no launcher has shown up for so long.
        api_secs: how long the cluster's API may be away.
        report_secs: seconds between two progress lines in the step's log.
    """

    image: str
    namespace: str = ""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, Any] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    env: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str = ""
    spot: Literal["none", "gke"] = "none"
    gang: str = "none"
    queue: str = ""
    storage_secret: str = ""
    work_medium: Literal["disk", "memory"] = "disk"
    work_size: str = ""
    dynamic: bool = True
    ttl_secs: int = 3600
    deadline_secs: int = 0
    pending_secs: float = 3600.0
    stall_secs: float = 3600.0
    unreachable_secs: int = 60
    lost_node_secs: float = 60.0
    max_recreations: int = 3
    max_pod_starts: int = 20
    lease_secs: float = 900.0
    api_secs: float = 7200.0
    report_secs: float = 60.0

    def __post_init__(self) -> None:
        """Check what needs no cluster. Raises InputError."""
        if not _IMAGE.fullmatch(self.image):
            raise InputError(
                f"image {self.image!r} is not an image name: expected "
                "registry/name:tag or registry/name@sha256:<64 hex digits>"
            )
        for name in ("pending_secs", "stall_secs", "lost_node_secs", "api_secs", "report_secs"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected more than 0")
        for name in ("ttl_secs", "deadline_secs", "unreachable_secs", "max_recreations"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 0")
        if self.lease_secs < 10:
            raise InputError(f"lease_secs is {self.lease_secs}, expected at least 10")
        unknown = sorted(set(self.resources) - {"requests", "limits", "claims"})
        if unknown:
            raise InputError(
                f"resources has {unknown[0]!r}, expected requests and limits as in a container: "
                '{"limits": {"cpu": "4", "memory": "16Gi"}}'
            )
