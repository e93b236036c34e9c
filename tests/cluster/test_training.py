"""Faults on a real cluster: each run ends in the right state, with the weights of a quiet one."""

import json
import time

import pytest

from tests.cluster.conftest import RECOVERIES, TENSORFLOW, assert_same, kubectl
from tests.cluster.laboratory import kill_container, stopped

pytestmark = pytest.mark.cluster
WORKERS = pytest.mark.parametrize("worker", [0, 1], ids=["chief", "other"])
# Longer than the API server's clients wait for one answer, shorter than a lost node's toleration.
AWAY_SECS = 30
# A lost node is told after half a minute, and its pods replaced a minute later: training must last.
LONG = {"epochs": 16}

# Inside a worker: the processes of its trainer.
KILL_TRAINER = """
import os, signal
for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}:
    line = open(f"/proc/{pid}/cmdline").read()
    if "worker.trainer" in line: os.kill(int(pid), signal.SIGKILL)
"""


def finished_like(run, weights):
    assert run.finish() == 0, run.log()
    assert_same(run, weights)


@pytest.mark.quick
def test_a_quiet_run_completes_and_says_so(train, undisturbed):
    run = train()
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed())
    assert "2 workers of" in run.log()
    assert "[worker 1]" in run.log()
    assert run.completion().num_restarts == 0


def test_a_single_worker_trains(train):
    run = train(workers=1)
    assert run.finish() == 0, run.log()
    assert run.completion().num_workers == 1


@pytest.mark.quick
def test_a_killed_trainer_is_replaced_in_place(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    with run.recovery("trainer killed"):
        kubectl("-n", run.namespace, "exec", run.worker(1), "--", "python", "-c", KILL_TRAINER)
    finished_like(run, undisturbed())
    assert run.completion().num_restarts >= 1


@WORKERS
def test_a_killed_supervisor_takes_its_container_along_and_is_replaced(train, undisturbed, worker):
    run = train()
    run.wait_for_step(40)
    with run.recovery("supervisor killed, and the container with it"):
        kill_container(*run.place(run.worker(worker)))
    finished_like(run, undisturbed())


@WORKERS
def test_a_deleted_pod_is_replaced(train, undisturbed, worker):
    run = train()
    run.wait_for_step(40)
    with run.recovery("pod deleted"):
        kubectl("-n", run.namespace, "delete", "pod", run.worker(worker), "--wait=false")
    finished_like(run, undisturbed())


def test_an_evicted_pod_is_replaced(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": run.worker(1), "namespace": run.namespace},
    }
    path = f"/api/v1/namespaces/{run.namespace}/pods/{run.worker(1)}/eviction"
    with run.recovery("pod evicted"):
        kubectl("create", "--raw", path, "-f", "-", text_input=json.dumps(eviction))
    finished_like(run, undisturbed())


@pytest.mark.quick
def test_a_drained_node_costs_a_restart(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    node, _ = run.place(run.worker(1))
    try:
        with run.recovery("node drained"):
            kubectl(
                *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
                *("--pod-selector", "relay/step=train_model"),
                timeout=180,
            )
        finished_like(run, undisturbed())
    finally:
        kubectl("uncordon", node)


def test_a_lost_node_whose_containers_live_on_does_no_harm(train, undisturbed):
    run = train(**LONG)
    run.wait_for_step(40)
    node, _ = run.place(run.worker(0))
    with stopped(f"kubelet-{node}"), run.recovery("node lost, its containers alive"):
        pass
    finished_like(run, undisturbed(**LONG))
    assert run.completion().num_restarts >= 1


def test_a_lost_node_whose_containers_died_costs_a_restart(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    node, _ = run.place(run.worker(0))
    on_node = [place for place in map(run.place, map(run.worker, (0, 1))) if place[0] == node]
    with stopped(f"kubelet-{node}"), run.recovery("node lost, its containers dead"):
        for place in on_node:
            kill_container(*place)
    finished_like(run, undisturbed())


@pytest.mark.parametrize(
    "moment",
    [
        "before the job",
        "before the workers",
        pytest.param("while they train", marks=pytest.mark.quick),
    ],
)
def test_a_launcher_that_is_killed_and_started_again_adopts_the_job(train, undisturbed, moment):
    run = train()
    if moment == "before the job":
        run.wait_until(lambda: run.running(run.launcher), what="the launcher's container")
    elif moment == "before the workers":
        run.wait_until(run.job_uid, what="the job")
    else:
        run.wait_for_step(40)
    uid = run.job_uid()
    kill_container(*run.place(run.launcher))
    run.start_launcher()
    if uid:
        assert run.job_uid() == uid
    finished_like(run, undisturbed())
    run.unnoticed(f"launcher killed {moment}")


def test_the_end_of_the_workflow_is_the_end_of_its_job(train, workflow):
    run = train(owner=workflow)
    run.wait_until(run.job_uid, what="the job")
    get = ("-n", run.namespace, "get", "tfjob", run.job, "-o", "json")
    [owner] = json.loads(kubectl(*get))["metadata"]["ownerReferences"]
    assert owner["uid"] == workflow["uid"]
    kill_container(*run.place(run.launcher))  # so that it is not the one that deletes
    kubectl("-n", run.namespace, "delete", "workflow.argoproj.io", workflow["name"])
    run.wait_until(lambda: not run.job_uid(), 60, "the job's deletion")
    assert run.completion() is None


def test_a_launcher_that_is_told_to_stop_deletes_its_job(train):
    run = train()
    run.wait_for_step(40)
    kubectl("-n", run.namespace, "delete", "pod", run.launcher, "--wait=false")
    began = time.monotonic()
    run.wait_until(lambda: not run.job_uid(), 30, "the job's deletion")
    RECOVERIES.append(
        ("launcher told to stop", f"{time.monotonic() - began:.0f} s to the job's deletion")
    )
    assert run.completion() is None


def test_an_operator_that_is_away_for_a_minute_costs_nothing(train, undisturbed):
    scale = ("-n", "kubeflow", "scale", "deployment", "training-operator", "--replicas")
    run = train()
    run.wait_for_step(40)
    kubectl(*scale, "0")
    try:
        time.sleep(60)
    finally:
        kubectl(*scale, "1")
    finished_like(run, undisturbed())
    run.unnoticed("operator away for a minute")


@pytest.mark.parametrize("part", ["kube-apiserver", "fake-gcs-server"])
def test_a_server_that_is_away_for_a_while_costs_nothing(train, undisturbed, part):
    run = train()
    run.wait_for_step(40)
    with stopped(part):
        time.sleep(AWAY_SECS)
    finished_like(run, undisturbed())
    run.unnoticed(f"{part} away for {AWAY_SECS} s")


def test_too_little_memory_is_told_with_its_remedy(train):
    run = train(max_restarts=1, kubernetes={"resources": {"limits": {"memory": "400Mi"}}})
    assert run.finish() not in (0, None)
    assert "out of memory" in run.log()
    assert "resources.limits.memory" in run.log()
    assert not run.job_uid()


def test_an_image_that_does_not_exist_is_told_with_its_remedy(train):
    run = train(
        kubernetes={
            "image": "localhost/relay/none:dev",
            "image_pull_policy": "Never",
            "pending_secs": 5,
        }
    )
    assert run.finish() == 64
    assert "the image cannot be pulled" in run.log()
    assert not run.job_uid()


def test_resources_that_fit_no_node_are_told_with_their_remedy(train):
    run = train(
        kubernetes={
            "image": TENSORFLOW,
            "resources": {"requests": {"cpu": "1000"}},
            "pending_secs": 5,
        }
    )
    assert run.finish() != 0
    assert "fits no node" in run.log()
    assert not run.job_uid()


def test_an_error_in_the_users_code_ends_the_job_with_its_message(train):
    run = train(hyperparameters={"units": "not a list of numbers"})
    code = run.finish()
    assert code in (64, 70), run.log()
    assert "worker" in run.log().rstrip().splitlines()[-1]
    assert not run.job_uid()


def test_a_field_that_the_cluster_does_not_know_is_refused_before_anything_starts(train):
    run = train(
        kubernetes={"volume_mounts": [{"name": "x", "mountPath": "/x", "sizeLimit": "1Gi"}]}
    )
    assert run.finish() == 64
    assert "sizeLimit" in run.log()
    assert not run.job_uid()


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_a_missing_right_is_told_in_one_line(train, namespace, verb):
    role = json.loads(kubectl("-n", namespace, "get", "role", "relay-launcher", "-o", "json"))
    whole = json.dumps(role["rules"])
    role["rules"][0]["verbs"].remove(verb)
    patch = ("-n", namespace, "patch", "role", "relay-launcher", "--type=merge", "-p")
    kubectl(*patch, json.dumps({"rules": role["rules"]}))
    try:
        run = train()
        assert run.finish() == 64
    finally:
        kubectl(*patch, json.dumps({"rules": json.loads(whole)}))
    assert f"may not {verb} tfjobs" in run.log()
    assert "Role relay-launcher" in run.log()
