"""The training job as the cluster reads it: options to a TFJob, by pure functions."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from kubeflow.training import (
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    KubeflowOrgV1SchedulingPolicy,
    KubeflowOrgV1TFJob,
    KubeflowOrgV1TFJobSpec,
)
from kubernetes import client as k8s

from components.contracts.errors import ERROR_FILE_VARIABLE
from components.contracts.job_names import GROUP, RUN_LABEL, STEP_LABEL, VERSION
from components.train_model.launch.options import KubernetesOptions
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import TOKEN_VARIABLE
from components.train_model.worker.cluster import JOB_VARIABLE, NAMESPACE_VARIABLE
from components.train_model.worker.lease import LEASE_VARIABLE

CONTAINER = "tensorflow"  # the operator looks for this name
SUPERVISOR_PORT = 2223
TRAINER_PORT = 2222
URI_ANNOTATION = "relay/run-uri"
FINGERPRINT_ANNOTATION = "relay/fingerprint"
USER_ID = 10001
WORK_FOLDER = "/var/relay"
# A supervisor answers /healthz within a second or two of its start; a busy node takes longer.
_START_SECS = 300
# After the trainers' last checkpoint: upload, exit, and some air.
_GRACE_MARGIN_SECS = 30
_KFP_SECRET = "mlpipeline-minio-artifact"  # noqa: S105 - the name of a secret


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """What makes a job this run's.

    Attributes:
        name: of the job.
        namespace: of the job.
        run: value of the label relay/run.
        run_uri: where the training run lies.
        fingerprint: of the training run.
        token: shared by its workers.
        owner: reference to the object that the job is deleted with; None if there is none.
    """

    name: str
    namespace: str
    run: str
    run_uri: str
    fingerprint: str
    token: str
    owner: Mapping[str, Any] | None = None


def build_tfjob(
    options: TrainOptions, place: KubernetesOptions, identity: JobIdentity
) -> dict[str, Any]:
    """The TFJob as a JSON object."""
    labels = _labels(place, identity)
    job = KubeflowOrgV1TFJob(
        api_version=f"{GROUP}/{VERSION}",
        kind="TFJob",
        metadata=k8s.V1ObjectMeta(
            name=identity.name,
            namespace=identity.namespace,
            labels=labels,
            annotations={
                URI_ANNOTATION: identity.run_uri,
                FINGERPRINT_ANNOTATION: identity.fingerprint,
            },
            owner_references=[dict(identity.owner)] if identity.owner else None,
        ),
        spec=KubeflowOrgV1TFJobSpec(
            # Only a dynamic job outlives the deletion of a running pod (kubeflow/trainer#2124).
            enable_dynamic_worker=place.dynamic and options.workers > 1,
            run_policy=_run_policy(options, place),
            tf_replica_specs={
                "Worker": KubeflowOrgV1ReplicaSpec(
                    replicas=options.workers,
                    restart_policy="ExitCode",
                    template=_template(options, place, identity, labels),
                )
            },
        ),
    )
    return dict(k8s.ApiClient().sanitize_for_serialization(job))


def worker_selector(name: str) -> str:
    """Label selector of a job's pods."""
    return f"training.kubeflow.org/job-name={name}"


def _labels(place: KubernetesOptions, identity: JobIdentity) -> dict[str, str]:
    own = {
        "app.kubernetes.io/managed-by": "relay",
        RUN_LABEL: identity.run,
        STEP_LABEL: "train_model",
    }
    return {**{name: str(value) for name, value in place.labels.items()}, **own}


def _run_policy(options: TrainOptions, place: KubernetesOptions) -> KubeflowOrgV1RunPolicy:
    scheduling = (
        KubeflowOrgV1SchedulingPolicy(
            min_available=options.workers,
            queue=place.queue or None,
            priority_class=place.priority_class or None,
        )
        if place.gang != "none"
        else None
    )
    return KubeflowOrgV1RunPolicy(
        # Without it the peers of a failed worker run on for ever.
        clean_pod_policy="Running",
        ttl_seconds_after_finished=place.ttl_secs,
        # A second clock: the operator looks at it only when something else wakes it.
        active_deadline_seconds=place.deadline_secs or None,
        scheduling_policy=scheduling,
    )


def _template(
    options: TrainOptions,
    place: KubernetesOptions,
    identity: JobIdentity,
    labels: Mapping[str, str],
) -> k8s.V1PodTemplateSpec:
    return k8s.V1PodTemplateSpec(
        metadata=k8s.V1ObjectMeta(
            # A sidecar would outlive the worker, and the pod would never end.
            labels={**labels, "sidecar.istio.io/inject": "false"},
            annotations={
                "sidecar.istio.io/inject": "false",
                # An autoscaler must not move a worker to save a node.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                **{name: str(value) for name, value in place.annotations.items()},
            },
        ),
        spec=k8s.V1PodSpec(
            containers=[_container(options, place, identity)],
            affinity=dict(place.affinity) or None,
            automount_service_account_token=False,
            enable_service_links=False,
            image_pull_secrets=[
                k8s.V1LocalObjectReference(name=name) for name in place.image_pull_secrets
            ]
            or None,
            node_selector=_node_selector(place) or None,
            priority_class_name=place.priority_class or None,
            scheduler_name=place.gang if place.gang != "none" else None,
            security_context=k8s.V1PodSecurityContext(
                run_as_non_root=True,
                run_as_user=USER_ID,
                run_as_group=USER_ID,
                fs_group=USER_ID,
                seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
            ),
            service_account_name=place.service_account or None,
            termination_grace_period_seconds=int(options.termination_secs) + _GRACE_MARGIN_SECS,
            tolerations=_tolerations(place),
            topology_spread_constraints=[
                k8s.V1TopologySpreadConstraint(
                    max_skew=1,
                    topology_key="kubernetes.io/hostname",
                    when_unsatisfiable="ScheduleAnyway",
                    label_selector=k8s.V1LabelSelector(
                        match_labels={"training.kubeflow.org/job-name": identity.name}
                    ),
                )
            ],
            volumes=_volumes(place),
        ),
    )


def _container(
    options: TrainOptions, place: KubernetesOptions, identity: JobIdentity
) -> k8s.V1Container:
    health = k8s.V1HTTPGetAction(path="/healthz", port="relay")
    return k8s.V1Container(
        name=CONTAINER,
        image=place.image,
        image_pull_policy=place.image_pull_policy,
        command=["python", "-m", "components.train_model.worker"],
        env=_environment(options, place, identity),
        ports=[
            k8s.V1ContainerPort(name="tfjob-port", container_port=TRAINER_PORT),
            k8s.V1ContainerPort(name="relay", container_port=options.port or SUPERVISOR_PORT),
        ],
        resources=dict(place.resources) or None,
        startup_probe=k8s.V1Probe(
            http_get=health, period_seconds=5, timeout_seconds=5, failure_threshold=_START_SECS // 5
        ),
        liveness_probe=k8s.V1Probe(
            http_get=health, period_seconds=15, timeout_seconds=10, failure_threshold=4
        ),
        security_context=k8s.V1SecurityContext(
            allow_privilege_escalation=False,
            capabilities=k8s.V1Capabilities(drop=["ALL"]),
            read_only_root_filesystem=True,
        ),
        # The file that carries a worker's one message to the launcher.
        termination_message_path="/dev/termination-log",
        termination_message_policy="FallbackToLogsOnError",
        volume_mounts=[
            k8s.V1VolumeMount(name="tmp", mount_path="/tmp"),  # noqa: S108 - the pod's own
            k8s.V1VolumeMount(name="work", mount_path=WORK_FOLDER),
            k8s.V1VolumeMount(name="shared-memory", mount_path="/dev/shm"),  # noqa: S108
            *(dict(mount) for mount in place.volume_mounts),
        ],
    )


def _environment(
    options: TrainOptions, place: KubernetesOptions, identity: JobIdentity
) -> list[Any]:
    own = {
        "RELAY_OPTIONS": _worker_options(options),
        "RELAY_RUN_URI": identity.run_uri,
        "RELAY_WORKER_DIR": f"{WORK_FOLDER}/worker",
        TOKEN_VARIABLE: identity.token,
        JOB_VARIABLE: identity.name,
        NAMESPACE_VARIABLE: identity.namespace,
        LEASE_VARIABLE: f"{place.lease_secs:g}",
        ERROR_FILE_VARIABLE: "/dev/termination-log",
        "RELAY_LOG_FORMAT": "json",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    defaults = {**_thread_limits(place), "HOME": "/tmp"}  # noqa: S108 - the pod's own
    given = {str(entry["name"]) for entry in place.env}
    secret = place.storage_secret or (_KFP_SECRET if identity.run_uri.startswith("minio:") else "")
    return [
        *(k8s.V1EnvVar(name=name, value=value) for name, value in own.items()),
        k8s.V1EnvVar(
            name="RELAY_POD_IP",
            value_from=k8s.V1EnvVarSource(
                field_ref=k8s.V1ObjectFieldSelector(field_path="status.podIP")
            ),
        ),
        *(k8s.V1EnvVar(name=n, value=v) for n, v in defaults.items() if n not in given),
        *(_secret_variables(secret) if "AWS_ACCESS_KEY_ID" not in given and secret else ()),
        *(dict(entry) for entry in place.env),
    ]


def _worker_options(options: TrainOptions) -> str:
    """Without what concerns the launcher alone: a changed limit there is no other pod."""
    return json.dumps({**dataclasses.asdict(options), "kubernetes": {}}, sort_keys=True)


def _thread_limits(place: KubernetesOptions) -> dict[str, str]:
    """TensorFlow counts the node's processors; a container with a limit has fewer."""
    limit = str(place.resources.get("limits", {}).get("cpu", ""))
    if not limit:
        return {}
    cores = float(limit.removesuffix("m")) / (1000 if limit.endswith("m") else 1)
    return {"TF_NUM_INTRAOP_THREADS": str(max(1, int(cores)))}


def _secret_variables(secret: str) -> list[k8s.V1EnvVar]:
    keys = {"AWS_ACCESS_KEY_ID": "accesskey", "AWS_SECRET_ACCESS_KEY": "secretkey"}
    return [
        k8s.V1EnvVar(
            name=name,
            value_from=k8s.V1EnvVarSource(
                secret_key_ref=k8s.V1SecretKeySelector(name=secret, key=key)
            ),
        )
        for name, key in keys.items()
    ]


def _node_selector(place: KubernetesOptions) -> dict[str, str]:
    spot = {"cloud.google.com/gke-spot": "true"} if place.spot == "gke" else {}
    return {**spot, **{name: str(value) for name, value in place.node_selector.items()}}


def _tolerations(place: KubernetesOptions) -> list[Any]:
    """A worker whose node is lost is replaced sooner than after the cluster's default of 300 s."""
    lost = [
        k8s.V1Toleration(
            key=f"node.kubernetes.io/{state}",
            operator="Exists",
            effect="NoExecute",
            toleration_seconds=place.unreachable_secs,
        )
        for state in ("not-ready", "unreachable")
    ]
    spot = [
        k8s.V1Toleration(
            key="cloud.google.com/gke-spot", operator="Equal", value="true", effect="NoSchedule"
        )
    ]
    return [
        *lost,
        *(spot if place.spot == "gke" else ()),
        *(dict(toleration) for toleration in place.tolerations),
    ]


def _volumes(place: KubernetesOptions) -> list[Any]:
    medium = "Memory" if place.work_medium == "memory" else None
    return [
        k8s.V1Volume(name="tmp", empty_dir=k8s.V1EmptyDirVolumeSource()),
        k8s.V1Volume(
            name="work",
            empty_dir=k8s.V1EmptyDirVolumeSource(medium=medium, size_limit=place.work_size or None),
        ),
        # NCCL passes data between processes of a node through it; a container's default is 64 MB.
        k8s.V1Volume(name="shared-memory", empty_dir=k8s.V1EmptyDirVolumeSource(medium="Memory")),
        *(dict(volume) for volume in place.volumes),
    ]
