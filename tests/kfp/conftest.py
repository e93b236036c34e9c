"""Against the Kubeflow Pipelines server that KFP_ENDPOINT names.

RELAY_TEST_ROOT is a folder of object storage that the pods of the server write to, RELAY_TEST_DATA
a CSV file that they read, with a column `label`; without them nothing here runs. The images are
those that the compiled pipelines name. Where KUBECONFIG names the cluster too, pods are deleted
and jobs looked at.
"""

import json
import os
import subprocess
import time
import uuid
import warnings

import pytest

RUN_SECS = 1800
DONE = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


@pytest.fixture(scope="session")
def endpoint():
    for name in ("KFP_ENDPOINT", "RELAY_TEST_ROOT", "RELAY_TEST_DATA"):
        if not os.environ.get(name):
            pytest.skip(f"{name} is not set: no Kubeflow Pipelines server to test against")
    return os.environ["KFP_ENDPOINT"]


@pytest.fixture(scope="session")
def client(endpoint):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kfp

        return kfp.Client(host=endpoint)


@pytest.fixture
def root():
    return f"{os.environ['RELAY_TEST_ROOT'].rstrip('/')}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def params(root):
    return {
        "data_source": os.environ["RELAY_TEST_DATA"],
        "label_column": "label",
        "model_module": "examples.flights.model",
        "storage_root": root,
        "export_root": f"{root}/models",
        "train_options": {"checkpoint_steps": 20},
    }


def wait(client, run_id, until, timeout=RUN_SECS):
    """Wait until `until(run)`; the run."""
    deadline = time.monotonic() + timeout
    while True:
        run = client.get_run(run_id)
        if until(run):
            return run
        assert time.monotonic() < deadline, f"run {run_id} is still {run.state}"
        time.sleep(3)


def ended(run):
    return run.state in DONE


def state_of(run, name):
    """State of a task by its display name, empty before it begins."""
    tasks = run.run_details.task_details if run.run_details else ()
    return next((t.state or "" for t in tasks or () if t.display_name == name), "")


def kubectl(*arguments):
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG does not name the server's cluster")
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobs_of(namespace, run_id):
    found = kubectl("-n", namespace, "get", "tfjobs", "-l", f"relay/run={run_id}", "-o", "json")
    return json.loads(found)["items"]
