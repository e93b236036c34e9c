"""Training on a real cluster: the one that KUBECONFIG names, with the images that it has.

The launcher runs as a pod with the account and Role of manifests/base, in a namespace that enforces
the restricted Pod Security level. RELAY_TEST_TENSORFLOW_IMAGE and RELAY_TEST_LAUNCHER_IMAGE name
the images, STORAGE_EMULATOR_HOST a GCS server that pods and this machine reach by one address.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import numpy as np
import pytest

from components.contracts.checkpoint import committed_steps, load_newest
from components.contracts.job_names import job_name
from components.contracts.training_run import read_completion
from components.storage.open import open_store
from components.train_model.launch.tfjob import SUPERVISOR_PORT

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = os.environ.get(
    "RELAY_TEST_TENSORFLOW_IMAGE", "localhost/relay/relay-tensorflow-python:dev"
)
LAUNCHER = os.environ.get("RELAY_TEST_LAUNCHER_IMAGE", "localhost/relay/relay-launcher-python:dev")
STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "")
START_SECS = 300
RUN_SECS = 600
SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def kubectl(*arguments, check=True, text_input=None, timeout=120):
    done = subprocess.run(
        ["kubectl", *arguments], capture_output=True, text=True, input=text_input, timeout=timeout
    )
    assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def cluster():
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster")
    if not STORAGE:
        pytest.skip("STORAGE_EMULATOR_HOST names no GCS server that pods can reach")
    done = subprocess.run(
        ["kubectl", "get", "crd", "tfjobs.kubeflow.org"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no cluster with TFJobs answers: {done.stderr.strip()}")


@pytest.fixture(scope="session")
def bucket(cluster):
    name = f"relay-test-{uuid.uuid4().hex[:8]}"
    request = urllib.request.Request(
        f"{STORAGE}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    yield name
    open_store(f"gs://{name}").delete_prefix("")


@pytest.fixture(scope="session")
def namespace(cluster):
    name = f"relay-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        kubectl("apply", "-n", name, "-k", str(ROOT / "manifests" / "base"))
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=true", timeout=300)


@pytest.fixture(scope="session")
def dataset_uri(bucket, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    for command in (
        ["examples.flights.data", "--output", str(folder)],
        [
            *("components.make_tfrecords", "--source", str(folder / "flights.csv")),
            *("--label", "late", "--group", "date", "--drop", '["date"]'),
            *("--output-uri", f"gs://{bucket}/dataset"),
        ],
    ):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True, capture_output=True)
    return f"gs://{bucket}/dataset"


# Fault and time to the next productive step.
RECOVERIES: list[tuple[str, str]] = []


def pytest_terminal_summary(terminalreporter):
    """Print the table of recoveries that docs/failure-modes.md shows."""
    if RECOVERIES:
        terminalreporter.section("from the fault to the next productive step")
        for fault, length in sorted(RECOVERIES):
            terminalreporter.write_line(f"| {fault} | {length} |")


class ClusterRun:
    """One training run, its launcher a pod."""

    def __init__(self, namespace, bucket, dataset_uri, *, owner=None, kubernetes=None, **options):
        self.namespace = namespace
        self.owner = owner
        self.run_uri = f"gs://{bucket}/{uuid.uuid4().hex[:8]}"
        self.job = job_name(self.run_uri)
        self.store = open_store(self.run_uri)
        place = {
            "image": TENSORFLOW,
            "image_pull_policy": "IfNotPresent",
            "env": [{"name": "STORAGE_EMULATOR_HOST", "value": STORAGE}],
            "lease_secs": 120,
            "report_secs": 5,
            "unreachable_secs": 15,
            "lost_node_secs": 5,
            **(kubernetes or {}),
        }
        self.values = {
            "dataset_uri": dataset_uri,
            "model_module": "examples.flights.model",
            "launcher": "kubernetes",
            "batch_size": 1024,
            "epochs": 1,
            "checkpoint_steps": 40,
            "termination_secs": 10,
            "output_uri": self.run_uri,
            "kubernetes": place,
            **options,
        }
        self.launchers = 0
        self.start_launcher()

    @property
    def launcher(self):
        return f"launcher-{self.run_uri.rpartition('/')[2]}-{self.launchers}"

    def start_launcher(self):
        self.launchers += 1
        flags = [
            f"--{name.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in self.values.items()
        ]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.launcher,
                "ownerReferences": [self.owner] if self.owner else [],
            },
            "spec": {
                "serviceAccountName": "relay-launcher",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 20,
                "tolerations": [{"operator": "Exists"}],
                "securityContext": {
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": LAUNCHER,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", "-m", "components.train_model", *flags],
                        "env": [
                            {"name": "STORAGE_EMULATOR_HOST", "value": STORAGE},
                            {"name": "RELAY_LOG_FORMAT", "value": "human"},
                        ],
                        "securityContext": SECURITY,
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        }
        kubectl("apply", "-n", self.namespace, "-f", "-", text_input=json.dumps(pod))

    def log(self):
        return kubectl("-n", self.namespace, "logs", self.launcher, check=False)

    def job_uid(self):
        """Uid of the job, empty if there is none."""
        get = ("-n", self.namespace, "get", "tfjob", self.job, "--ignore-not-found")
        return kubectl(*get, "-o", "jsonpath={.metadata.uid}").strip()

    def running(self, pod):
        get = ("-n", self.namespace, "get", "pod", pod, "-o")
        return kubectl(*get, "jsonpath={.status.containerStatuses[0].state.running}").strip()

    def worker(self, index):
        return f"{self.job}-worker-{index}"

    def place(self, pod):
        """Node of a pod and id of its container."""
        found = json.loads(kubectl("-n", self.namespace, "get", "pod", pod, "-o", "json"))
        container = found["status"]["containerStatuses"][0]["containerID"]
        return found["spec"]["nodeName"], container.rpartition("/")[2]

    def progress(self):
        """Incarnation and step that worker 0's metrics show, None while it does not answer."""
        pod = f"{self.worker(0)}:{SUPERVISOR_PORT}"
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/proxy/metrics"
        done = subprocess.run(["kubectl", "get", "--raw", path], capture_output=True, text=True)
        shown = [line.rpartition(" ") for line in done.stdout.splitlines()]
        values = {name.partition("{")[0]: value for name, _, value in shown}
        if not {"relay_incarnation", "relay_step"} <= set(values):
            return None
        return float(values["relay_incarnation"]), float(values["relay_step"])

    @contextlib.contextmanager
    def recovery(self, fault):
        """Time what follows a fault: from here to the first new step of a new incarnation.

        Steps that are done again do not count.
        """
        self.wait_until(self.progress, what="worker 0's metrics")
        incarnation, reached = self.progress()
        began = time.monotonic()
        yield

        def further():
            nonlocal reached
            seen = self.progress()
            if seen and seen[0] == incarnation:
                reached = max(reached, seen[1])
            again = seen and seen[0] > incarnation and seen[1] > reached
            return again or self.completion() is not None

        self.wait_until(further, what=f"a step beyond {reached:.0f} after: {fault}")
        RECOVERIES.append((fault, f"{time.monotonic() - began:.0f} s"))

    def unnoticed(self, fault):
        """Check that training went on as if nothing had happened."""
        assert self.completion().num_restarts == 0
        RECOVERIES.append((fault, "none: no restart"))

    def wait_until(self, condition, timeout=START_SECS, what="what was waited for"):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                pods = kubectl("-n", self.namespace, "get", "pods", "-o", "wide", check=False)
                pytest.fail(f"{what} did not come\n{pods}\n{self.log()}")
            time.sleep(0.5)

    def wait_for_step(self, step):
        """Wait for a committed checkpoint of this step or a later one."""
        self.wait_until(
            lambda: max(committed_steps(self.store), default=0) >= step, what=f"step {step}"
        )

    def finish(self, timeout=RUN_SECS):
        """Wait for the launcher's end; its exit code."""
        ended = "{.status.containerStatuses[0].state.terminated.exitCode}"
        get = ("-n", self.namespace, "get", "pod", self.launcher, "-o", f"jsonpath={ended}")
        self.wait_until(lambda: kubectl(*get), timeout, "the launcher's end")
        return int(kubectl(*get))

    def arrays(self):
        return load_newest(self.store)[1]

    def completion(self):
        return read_completion(self.store)

    def close(self):
        kubectl("-n", self.namespace, "delete", "tfjob", self.job, "--ignore-not-found")
        for number in range(1, self.launchers + 1):
            name = self.launcher.rpartition("-")[0] + f"-{number}"
            kubectl(
                *("-n", self.namespace, "delete", "pod", name),
                *("--ignore-not-found", "--grace-period=1", "--wait=false"),
            )


@pytest.fixture
def train(namespace, bucket, dataset_uri):
    runs = []

    def start(**options):
        runs.append(ClusterRun(namespace, bucket, dataset_uri, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def workflow(namespace):
    """Reference to an Argo Workflow, the object that a pipeline run is; nothing runs it here."""
    definition = ROOT / "tests" / "cluster" / "workflow_definition.yaml"
    present = subprocess.run(
        ["kubectl", "get", "crd", "workflows.argoproj.io"], capture_output=True
    )
    if present.returncode:
        kubectl("apply", "-f", str(definition))
        kubectl("wait", "--for=condition=Established", "-f", str(definition))
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "run-"},
    }
    create = ("create", "-n", namespace, "-f", "-", "-o", "json")
    metadata = json.loads(kubectl(*create, text_input=json.dumps(body)))["metadata"]
    try:
        yield {
            **{key: body[key] for key in ("apiVersion", "kind")},
            **{key: metadata[key] for key in ("name", "uid")},
        }
    finally:
        kubectl(
            *("-n", namespace, "delete", "workflow.argoproj.io", metadata["name"]),
            "--ignore-not-found",
        )
        if present.returncode:
            kubectl("delete", "-f", str(definition))


@pytest.fixture(scope="session")
def undisturbed(namespace, bucket, dataset_uri):
    """A function of options: weights of such a run that nobody disturbed."""

    @functools.cache
    def weights(**options):
        run = ClusterRun(namespace, bucket, dataset_uri, **options)
        with contextlib.closing(run):
            assert run.finish() == 0, run.log()
            return run.arrays()

    return weights


def assert_same(run, weights):
    assert run.completion() is not None
    found = run.arrays()
    assert sorted(found) == sorted(weights)
    assert [name for name in found if not np.array_equal(found[name], weights[name])] == []
