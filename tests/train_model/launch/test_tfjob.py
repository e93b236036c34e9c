"""The training job as the cluster reads it."""

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from components.contracts.errors import InputError
from components.train_model.launch.options import KubernetesOptions
from components.train_model.launch.tfjob import JobIdentity, build_tfjob
from components.train_model.options import TrainOptions

GOLDEN = Path(__file__).parent / "golden"
IDENTITY = JobIdentity(
    name="train-delays-0123456789ab",
    namespace="team",
    run="5b1f7f2e-90c4-4a3f-8b0c-3f9a5d3c2b1a",
    run_uri="gs://bucket/delays/run/train-model/uuid/run",
    fingerprint="f00d",
    token="t0ken",
)
OPTIONS = TrainOptions(
    dataset_uri="gs://bucket/dataset",
    model_module="examples.flights.model",
    launcher="kubernetes",
    workers=2,
)
PLAIN = KubernetesOptions(image="registry.example/relay:1")
FULL = KubernetesOptions(
    image="registry.example/relay@sha256:" + "a" * 64,
    image_pull_policy="Always",
    image_pull_secrets=("pull",),
    service_account="relay-worker",
    resources={"requests": {"cpu": "4"}, "limits": {"cpu": "4", "nvidia.com/gpu": "1"}},
    node_selector={"pool": "gpu"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
    affinity={"podAntiAffinity": {}},
    env=({"name": "NCCL_DEBUG", "value": "INFO"},),
    volumes=({"name": "scratch", "ephemeral": {}},),
    volume_mounts=({"name": "scratch", "mountPath": "/scratch"},),
    labels={"team": "a"},
    annotations={"note": "b"},
    priority_class="training",
    spot="gke",
    gang="volcano",
    queue="research",
    storage_secret="keys",
    work_medium="memory",
    work_size="20Gi",
    dynamic=False,
    ttl_secs=60,
    deadline_secs=86400,
)


@pytest.fixture(params=["plain", "full"])
def job(request):
    place = PLAIN if request.param == "plain" else FULL
    return request.param, build_tfjob(OPTIONS, place, IDENTITY)


def test_the_whole_manifest_is_the_expected_one(job):
    name, found = job
    container = found["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    # Every training option is in it: compared by value in the next test.
    container["env"] = [entry for entry in container["env"] if entry["name"] != "RELAY_OPTIONS"]
    expected = yaml.safe_load((GOLDEN / f"tfjob-{name}.yaml").read_text())
    assert found == expected


def test_a_worker_gets_every_option_but_the_launchers():
    options = TrainOptions(**{**vars(OPTIONS), "kubernetes": {"image": "x", "ttl_secs": 5}})
    job = build_tfjob(options, PLAIN, IDENTITY)
    container = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    text = next(entry["value"] for entry in container["env"] if entry["name"] == "RELAY_OPTIONS")
    assert TrainOptions(**json.loads(text)) == OPTIONS


def test_the_pods_are_valid_kubernetes_objects(job):
    template = job[1]["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "worker"},
        "spec": template["spec"],
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_every_policy_lies_where_the_operator_reads_it(job):
    spec = job[1]["spec"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    assert set(spec) <= {"enableDynamicWorker", "runPolicy", "tfReplicaSpecs"}


def test_no_sidecar_is_injected_into_any_replica(job):
    for replica in job[1]["spec"]["tfReplicaSpecs"].values():
        metadata = replica["template"]["metadata"]
        assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
        assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"


def test_one_worker_is_no_dynamic_job():
    options = TrainOptions(**{**vars(OPTIONS), "workers": 1})
    assert build_tfjob(options, PLAIN, IDENTITY)["spec"]["enableDynamicWorker"] is False


def test_stock_kubeflow_storage_gets_its_keys_from_the_stock_secret():
    identity = JobIdentity(**{**vars(IDENTITY), "run_uri": "minio://mlpipeline/v2/artifacts/x"})
    job = build_tfjob(OPTIONS, PLAIN, identity)
    env = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
    found = {entry["name"]: entry.get("valueFrom") for entry in env}
    assert found["AWS_SECRET_ACCESS_KEY"] == {
        "secretKeyRef": {"name": "mlpipeline-minio-artifact", "key": "secretkey"}
    }


@pytest.mark.parametrize(
    "image",
    ["", "Relay", "relay:", "registry/relay:tag:tag", "relay@sha256:abc", "relay image", "-relay"],
)
def test_a_name_that_is_no_image_name_is_refused(image):
    with pytest.raises(InputError, match="is not an image name"):
        KubernetesOptions(image=image)


@pytest.mark.parametrize(
    "image",
    [
        "relay",
        "localhost/relay/relay-tensorflow-python:dev",
        "registry.example:5000/team/relay__x:1.0-rc.1",
        "europe-docker.pkg.dev/project/repo/relay@sha256:" + "0" * 64,
        "relay:1@sha256:" + "0" * 64,
    ],
)
def test_image_names_of_every_form_are_taken(image):
    assert KubernetesOptions(image=image).image == image


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resources": {"cpu": "4"}}, "requests and limits"),
        ({"lease_secs": 1}, "lease_secs"),
        ({"pending_secs": 0}, "pending_secs"),
        ({"ttl_secs": -1}, "ttl_secs"),
    ],
)
def test_options_that_cannot_work_are_refused(change, text):
    with pytest.raises(InputError, match=text):
        KubernetesOptions(image="relay", **change)
