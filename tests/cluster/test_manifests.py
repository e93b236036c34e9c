"""What manifests/ holds, and the jobs the launcher makes, are accepted by a real API server."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import ROOT, kubectl

pytestmark = pytest.mark.cluster
FOLDERS = ["base", *(f"overlays/{name}" for name in ("kind", "kubeflow-profile", "gke"))]
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
DEFINITIONS = ("podmonitors", "prometheusrules")
GOLDEN = ROOT / "tests" / "train_model" / "launch" / "golden"


def dry_run(namespace, *arguments, **options):
    kubectl("-n", namespace, "apply", "--dry-run=server", *arguments, **options)


@pytest.mark.quick
@pytest.mark.parametrize("folder", FOLDERS)
def test_an_overlay_is_accepted(namespace, folder):
    dry_run(namespace, "-k", str(ROOT / "manifests" / folder))


@pytest.fixture(scope="session")
def prometheus_definitions(cluster):
    """The Prometheus Operator's own definitions, installed while the tests run."""
    if shutil.which("go") is None:
        pytest.skip("no Go to fetch the Prometheus Operator's definitions with")
    done = subprocess.run(
        ["go", "mod", "download", "-json", OPERATOR], capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        pytest.skip(
            f"the Prometheus Operator's definitions cannot be fetched: {done.stdout}{done.stderr}"
        )
    folder = Path(json.loads(done.stdout)["Dir"], "example", "prometheus-operator-crd")
    files = [str(folder / f"monitoring.coreos.com_{name}.yaml") for name in DEFINITIONS]
    present = kubectl("get", "crd", "-o", "name")
    mine = [file for file, name in zip(files, DEFINITIONS, strict=True) if name not in present]
    for file in mine:
        kubectl("apply", "--server-side", "-f", file)
        kubectl("wait", "--for=condition=Established", "-f", file)
    yield
    for file in mine:
        kubectl("delete", "-f", file)


def test_monitoring_is_accepted(namespace, prometheus_definitions):
    dry_run(namespace, "-k", str(ROOT / "manifests" / "monitoring"))


@pytest.mark.quick
@pytest.mark.parametrize("name", ["plain", "full"])
def test_a_job_as_the_launcher_makes_it_is_accepted_field_by_field(namespace, name):
    job = yaml.safe_load((GOLDEN / f"tfjob-{name}.yaml").read_text())
    job["metadata"] = {**job["metadata"], "namespace": namespace}
    job["metadata"].pop("ownerReferences", None)
    text = json.dumps(job)
    dry_run(namespace, "--validate=strict", "-f", "-", text_input=text)


@pytest.mark.quick
def test_the_namespace_admits_the_workers_pod(namespace):
    job = yaml.safe_load((GOLDEN / "tfjob-plain.yaml").read_text())
    template = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "worker"},
        "spec": template["spec"],
    }
    dry_run(namespace, "-f", "-", text_input=json.dumps(pod))
