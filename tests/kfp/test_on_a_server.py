"""The pipelines on a real server: from upload to a served model, and what may happen on the way."""

import os
import time
import uuid

import pytest

from components.contracts.published_model import read_champion
from components.storage.open import open_store
from pipelines import server
from pipelines.compile import COMPILED
from tests.kfp.conftest import ended, jobs_of, kubectl, state_of, wait

pytestmark = pytest.mark.kfp
PACKAGE = str(COMPILED / "train_and_export.yaml")
RECURRING = str(COMPILED / "retrain_and_promote.yaml")
NAMESPACE = os.environ.get("RELAY_TEST_NAMESPACE", "kubeflow")


def start(client, params, package=PACKAGE, **options):
    experiment = client.create_experiment("relay-test")
    name = f"test-{uuid.uuid4().hex[:6]}"
    return client.run_pipeline(experiment.experiment_id, name, package, params, **options).run_id


def training(client, run_id):
    wait(client, run_id, lambda run: state_of(run, "Train") == "RUNNING" or ended(run))
    deadline = time.monotonic() + 600
    while not (jobs := jobs_of(NAMESPACE, run_id)):
        assert time.monotonic() < deadline, "the training step made no job"
        time.sleep(2)
    return jobs[0]


def test_upload_and_the_whole_way_to_a_served_model(client, params, root):
    uploaded = client.upload_pipeline(PACKAGE, pipeline_name=f"relay-{uuid.uuid4().hex[:6]}")
    try:
        run_id = start(client, params)
        assert wait(client, run_id, ended).state == "SUCCEEDED"
        champion, _ = read_champion(open_store(f"{root}/models"))
        assert champion.version == 1
        assert open_store(champion.model_uri).stat("saved_model.pb") is not None
    finally:
        client.delete_pipeline(uploaded.pipeline_id)


def test_the_command_line_creates_a_run_and_follows_it(endpoint, params, tmp_path, capsys):
    file = tmp_path / "params.yaml"
    file.write_text("\n".join(f"{key}: {value!r}" for key, value in params.items()))
    code = server.main(["submit", "--endpoint", endpoint, "--params", str(file)])
    assert code == 0, capsys.readouterr().out


def test_a_bad_input_fails_with_its_reason(client, params):
    run_id = start(client, {**params, "label_column": "no such column"})
    run = wait(client, run_id, ended)
    assert run.state == "FAILED"
    assert state_of(run, "Data to TFRecord") == "FAILED"
    assert state_of(run, "Train") == ""


def test_a_trainer_that_is_killed_is_started_again_in_its_container(client, params):
    run_id = start(client, params)
    job = training(client, run_id)
    pod = f"{job['metadata']['name']}-worker-1"
    kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=300s")
    program = "import os,signal;[os.kill(int(p),9) for p in os.listdir('/proc') if p.isdigit() and "
    program += "b'worker.trainer' in open(f'/proc/{p}/cmdline','rb').read()]"
    kubectl("-n", NAMESPACE, "exec", pod, "--", "python", "-c", program)
    assert wait(client, run_id, ended).state == "SUCCEEDED"


def test_a_launcher_pod_that_is_deleted_adopts_its_job(client, params):
    run_id = start(client, params)
    job = training(client, run_id)
    selector = f"pipeline/runid={run_id}"
    pods = kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "name").split()
    for pod in pods:
        env = kubectl("-n", NAMESPACE, "get", pod, "-o", "jsonpath={.spec.containers[*].command}")
        if "train_model" in env:
            kubectl("-n", NAMESPACE, "delete", pod, "--force", "--grace-period=0")
    run = wait(client, run_id, ended)
    assert run.state == "SUCCEEDED"
    assert all(found["metadata"]["uid"] for found in jobs_of(NAMESPACE, run_id))
    assert job["metadata"]["name"]


def test_terminate_leaves_no_job_and_retry_goes_on(client, params, root):
    run_id = start(client, params)
    training(client, run_id)
    client.terminate_run(run_id)
    wait(client, run_id, ended)
    deadline = time.monotonic() + 120
    while jobs_of(NAMESPACE, run_id):
        assert time.monotonic() < deadline, "the job is still there"
        time.sleep(2)
    client._run_api.run_service_retry_run(run_id)  # what the UI's button calls
    time.sleep(10)
    assert wait(client, run_id, ended).state == "SUCCEEDED"
    assert read_champion(open_store(f"{root}/models"))[0] is not None


def test_a_schedule_fires_twice_and_the_second_finds_nothing_new(client, params):
    experiment = client.create_experiment("relay-test")
    name = f"test-{uuid.uuid4().hex[:6]}"
    made = client.create_recurring_run(
        experiment.experiment_id,
        name,
        cron_expression="0 */2 * * * *",
        max_concurrency=1,
        no_catchup=True,
        pipeline_package_path=RECURRING,
        params=params,
    )
    try:
        deadline = time.monotonic() + 2 * 1800
        while True:
            runs = (
                client.list_runs(experiment_id=experiment.experiment_id, page_size=100).runs or []
            )
            mine = [run for run in runs if run.recurring_run_id == made.recurring_run_id]
            if sum(ended(run) for run in mine) >= 2:
                break
            assert time.monotonic() < deadline, f"{len(mine)} runs"
            time.sleep(10)
    finally:
        client.delete_recurring_run(made.recurring_run_id)
    first, second = sorted(mine, key=lambda run: run.created_at)[:2]
    assert first.state == second.state == "SUCCEEDED"
    assert state_of(client.get_run(second.run_id), "Train") in ("", "SKIPPED")


def test_a_dataset_that_was_deleted_is_converted_again(client, params, root):
    run_id = start(client, params, enable_caching=True)
    assert wait(client, run_id, ended).state == "SUCCEEDED"
    store = open_store(root)
    for entry in list(store.list("")):
        if entry.name.endswith(".tfrecord"):
            store.delete(entry.name)
    run_id = start(client, params)
    assert wait(client, run_id, ended).state == "SUCCEEDED"
