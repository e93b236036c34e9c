"""The manifests are built, valid, restricted, and grant what the code uses and no more."""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from components.train_model.launch.api import PERMISSIONS
from components.train_model.launch.tfjob import SUPERVISOR_PORT, JobIdentity, build_tfjob
from components.train_model.options import TrainOptions
from tests.manifests.conftest import FOLDERS, ROOT, built

PODSECURITY = Path(sys.executable).parent / "podsecurity"
# Kinds that other projects define: their schemas are looked at where they are installed.
FOREIGN = ("PodMonitor", "PrometheusRule", "InferenceService")
CLUSTER_SCOPED = ("PriorityClass", "ClusterServingRuntime", "Namespace")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_valid(folder):
    objects = built(folder)
    assert objects
    for entry in objects:
        if entry["kind"] not in FOREIGN:
            kubernetes_validate.validate(entry, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_object_names_a_namespace_and_none_is_there_twice(folder):
    objects = built(folder)
    names = [(entry["kind"], entry["metadata"]["name"]) for entry in objects]
    assert len(names) == len(set(names))
    assert [
        n for n, entry in zip(names, objects, strict=True) if "namespace" in entry["metadata"]
    ] == []


def test_the_role_grants_what_the_launcher_uses_and_no_more():
    [role] = [entry for entry in built("manifests/base") if entry["kind"] == "Role"]
    granted = {
        (verb, group, *_split(resource))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == set(PERMISSIONS)


def _split(resource):
    name, _, subresource = resource.partition("/")
    return name, subresource


@pytest.mark.parametrize("folder", [f for f in FOLDERS if "overlays" in f])
def test_every_binding_binds_that_role_to_one_account(folder):
    for entry in built(folder):
        if entry["kind"] == "RoleBinding":
            assert entry["roleRef"]["name"] == "relay-launcher"
            [subject] = entry["subjects"]
            assert subject["kind"] == "ServiceAccount"
        assert entry["kind"] not in ("ClusterRole", "ClusterRoleBinding")


def test_the_network_policy_lets_the_port_through_that_the_supervisor_has():
    [policy] = [entry for entry in built("manifests/base") if entry["kind"] == "NetworkPolicy"]
    ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", ())]
    assert ports == [SUPERVISOR_PORT]


def worker_of(place):
    options = TrainOptions(
        dataset_uri="gs://b/d", model_module="m", workers=2, launcher="kubernetes", kubernetes=place
    )
    from components.train_model.launch.options import KubernetesOptions

    identity = JobIdentity(
        name="train-x", namespace="n", run="r", run_uri="gs://b/r", fingerprint="f", token="t"
    )
    job = build_tfjob(options, KubernetesOptions(**place), identity)
    return job["spec"]["tfReplicaSpecs"]["Worker"]["template"]


def pods():
    """Every pod that the manifests or the launcher make, by where it comes from."""
    found = {"launcher: plain": worker_of({"image": "relay:1"})}
    overlay = yaml.safe_load((ROOT / "manifests/overlays/gke/train_options.yaml").read_text())
    found["launcher: gke"] = worker_of({"image": "relay:1", **overlay["kubernetes"]})
    for folder in FOLDERS:
        for entry in built(folder):
            if entry["kind"] == "Deployment":
                found[f"{folder}: {entry['metadata']['name']}"] = entry["spec"]["template"]
    return found


def test_every_pod_satisfies_the_restricted_pod_security_standard():
    if not PODSECURITY.exists():
        pytest.skip("podsecurity is not built: no Go on this machine")
    lines = [
        json.dumps({"metadata": {"name": origin}, "spec": template["spec"]})
        for origin, template in pods().items()
    ]
    assert len(lines) >= 4
    done = subprocess.run(
        [PODSECURITY], input="\n".join(lines), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_standard_is_really_asked():
    if not PODSECURITY.exists():
        pytest.skip("podsecurity is not built: no Go on this machine")
    pod = {"metadata": {"name": "bad"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    done = subprocess.run(
        [PODSECURITY], input=json.dumps(pod), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "runAsNonRoot" in done.stdout


def test_the_options_beside_the_gke_overlay_name_what_it_makes():
    overlay = yaml.safe_load((ROOT / "manifests/overlays/gke/train_options.yaml").read_text())
    names = {(e["kind"], e["metadata"]["name"]) for e in built("manifests/overlays/gke")}
    place = overlay["kubernetes"]
    assert ("ServiceAccount", place["service_account"]) in names
    assert ("PriorityClass", place["priority_class"]) in names
    template = worker_of({"image": "relay:1", **place})
    assert template["spec"]["nodeSelector"]["cloud.google.com/gke-spot"] == "true"


def test_the_patch_of_kubeflow_pipelines_is_the_config_map_that_argo_reads():
    patch = yaml.safe_load((ROOT / "manifests/kfp/workflow-controller-patch.yaml").read_text())
    defaults = yaml.safe_load(patch["data"]["workflowDefaults"])
    strategy = defaults["spec"]["templateDefaults"]["retryStrategy"]
    assert strategy == {"limit": "0", "retryPolicy": "Always"}


def test_every_folder_is_told_of_in_the_readme():
    text = (ROOT / "manifests/README.md").read_text()
    for folder in FOLDERS:
        part = folder.removeprefix("manifests/")
        assert f"`{part}" in text or f"`{part.partition('/')[0]}/`" in text, part


def test_no_manifest_holds_a_secret():
    for file in ROOT.glob("manifests/**/*.yaml"):
        text = file.read_text()
        assert "kind: Secret\n" not in text, file
        assert not re.search(r"(?i)(password|secretkey|accesskey):\s*\S", text), file
