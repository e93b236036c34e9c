"""Every image as a pod, in a namespace that enforces the restricted level, doing its real work."""

import json
import time

import pytest

from components.contracts.training_run import read_completion
from components.storage.open import open_store
from tests.cluster.conftest import LAUNCHER, SECURITY, STORAGE, TENSORFLOW, kubectl

pytestmark = pytest.mark.images
POD_SECS = 600
ROWS = 20_000
# What no image may hold: it is not needed at run time, and helps an intruder.
TOOLS = ("gcc", "cc", "g++", "make", "pip", "git", "curl", "wget")
LOOK = f"""
import json, os, shutil, sys
found = [name for name in {TOOLS!r} if shutil.which(name)]
tensorflow = [
    folder for folder, _, names in os.walk("/")
    if any(name.startswith("libtensorflow_cc") for name in names) and "/proc/" not in folder
]
try:
    open("/opt/relay/app/probe", "w")
    writable = True
except OSError:
    writable = False
print(json.dumps({{"user": os.getuid(), "tools": found, "tensorflow": tensorflow,
                  "writable": writable, "modules": "tensorflow" in sys.modules}}))
"""


@pytest.fixture
def run_pod(namespace):
    """A function that runs a command in an image to its end and returns (exit code, log)."""
    names = []

    def run(image, command, **env):
        name = f"image-{len(names)}-{int(time.time())}"
        names.append(name)
        variables = {"STORAGE_EMULATOR_HOST": STORAGE, "RELAY_LOG_FORMAT": "human", **env}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": command,
                        "env": [{"name": key, "value": text} for key, text in variables.items()],
                        "securityContext": SECURITY,
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        }
        kubectl("apply", "-n", namespace, "-f", "-", text_input=json.dumps(pod))
        return _end_of(namespace, name)

    yield run
    for name in names:
        kubectl("-n", namespace, "delete", "pod", name, "--ignore-not-found", "--wait=false")


def _end_of(namespace, name):
    deadline = time.monotonic() + POD_SECS
    while True:
        status = json.loads(kubectl("-n", namespace, "get", "pod", name, "-o", "json"))["status"]
        state = (status.get("containerStatuses") or [{"state": {}}])[0]["state"]
        if "terminated" in state:
            log = kubectl("-n", namespace, "logs", name, check=False)
            return state["terminated"]["exitCode"], log
        assert time.monotonic() < deadline, f"pod {name} does not end: {status}"
        time.sleep(1)


@pytest.mark.parametrize("image", [LAUNCHER, TENSORFLOW], ids=["launcher", "tensorflow"])
def test_an_image_holds_what_it_needs_and_nothing_more(run_pod, image):
    code, log = run_pod(image, ["python", "-c", LOOK])
    assert code == 0, log
    found = json.loads(log.splitlines()[-1])
    assert found["user"] == 10001
    assert found["tools"] == []
    assert not found["writable"]
    assert len(found["tensorflow"]) == (1 if image == TENSORFLOW else 0)


def test_the_launchers_image_knows_the_training_step(run_pod):
    code, log = run_pod(LAUNCHER, ["python", "-m", "components.train_model", "--help"])
    assert code == 0, log
    assert "--dataset-uri" in log


def test_all_four_steps_run_in_the_tensorflow_image(run_pod, bucket):
    root = f"gs://{bucket}/images"
    source = open_store(root)
    rows = "\n".join(f"{n % 7},{n % 11},{int(n % 7 > n % 11)}" for n in range(ROWS))
    source.write("rows.csv", f"a,b,label\n{rows}\n".encode())
    module = "examples.flights.model"
    steps = {
        "make_tfrecords": [
            *("--source", f"{root}/rows.csv", "--label", "label"),
            *("--output-uri", f"{root}/dataset"),
        ],
        "train_model": [
            *("--dataset-uri", f"{root}/dataset", "--model-module", module),
            *("--workers", "1", "--epochs", "1", "--output-uri", f"{root}/run"),
        ],
        "evaluate_model": [
            *("--dataset-uri", f"{root}/dataset", "--run-uri", f"{root}/run"),
            *("--output-uri", f"{root}/report"),
        ],
        "export_model": [
            *("--dataset-uri", f"{root}/dataset", "--run-uri", f"{root}/run"),
            *("--report-uri", f"{root}/report", "--export-root", f"{root}/models"),
        ],
    }
    for step, flags in steps.items():
        command = ["python", "-m", f"components.{step}", *flags]
        code, log = run_pod(TENSORFLOW, command, NUMBA_DEBUG_CACHE="1")
        assert code == 0, f"{step}: {log}"
        if step == "make_tfrecords":  # compiled when the image was built, not again
            assert "[cache] data loaded from" in log
            assert "[cache] data saved" not in log
    assert read_completion(open_store(f"{root}/run")) is not None
    names = [entry.name for entry in open_store(f"{root}/models").list("")]
    assert any(name.endswith("saved_model.pb") for name in names)
