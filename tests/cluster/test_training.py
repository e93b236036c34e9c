"""Faults on a real cluster: each run ends in the right state, with the weights of a quiet one."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import TENSORFLOW, assert_same, kubectl

pytestmark = pytest.mark.cluster

# Inside a worker: the processes of its trainer and of its supervisor.
KILL_TRAINER = """
import os, signal
for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}:
    line = open(f"/proc/{pid}/cmdline").read()
    if "worker.trainer" in line: os.kill(int(pid), signal.SIGKILL)
"""


def node_of(run, index):
    get = ("-n", run.namespace, "get", "pod", run.worker(index), "-o", "jsonpath={.spec.nodeName}")
    return kubectl(*get)


def test_a_quiet_run_completes_and_says_so(train, undisturbed):
    run = train()
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed)
    assert "2 workers of" in run.log()
    assert "[worker 1]" in run.log()
    assert run.completion().num_restarts == 0


def test_a_single_worker_trains(train):
    run = train(workers=1)
    assert run.finish() == 0, run.log()
    assert run.completion().num_workers == 1


def test_killed_trainers_are_replaced_in_place(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    kubectl("-n", run.namespace, "exec", run.worker(1), "--", "python", "-c", KILL_TRAINER)
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed)
    assert run.completion().num_restarts >= 1


@pytest.mark.parametrize("worker", [0, 1], ids=["chief", "other"])
def test_a_deleted_pod_is_replaced(train, undisturbed, worker):
    run = train()
    run.wait_for_step(40)
    kubectl("-n", run.namespace, "delete", "pod", run.worker(worker), "--wait=false")
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed)


def test_a_drained_node_costs_a_restart(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    node = node_of(run, 1)
    try:
        kubectl(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            *("--pod-selector", "relay/step=train_model"),
            timeout=180,
        )
        assert run.finish() == 0, run.log()
    finally:
        kubectl("uncordon", node)
    assert_same(run, undisturbed)


def test_a_lost_node_whose_containers_live_on_does_no_harm(train, undisturbed):
    pids = Path(os.environ.get("LAB", "/nowhere")) / "run" / "pids"
    if not pids.is_dir():
        pytest.skip("nodes can only be lost where LAB names the laboratory cluster")
    run = train()
    run.wait_for_step(40)
    kubelet = int((pids / f"kubelet-{node_of(run, 0)}").read_text())
    os.kill(kubelet, signal.SIGSTOP)
    try:
        assert run.finish() == 0, run.log()
    finally:
        os.kill(kubelet, signal.SIGCONT)
    assert_same(run, undisturbed)


def test_a_launcher_that_is_killed_and_started_again_adopts_the_job(train, undisturbed):
    run = train()
    run.wait_for_step(40)
    get = ("-n", run.namespace, "get", "tfjob", run.job, "-o", "jsonpath={.metadata.uid}")
    uid = kubectl(*get)
    kubectl(
        *("-n", run.namespace, "delete", "pod", run.launcher, "--grace-period=0", "--force"),
    )
    # The kubelet still sends SIGTERM first: the job may be gone, and is then made again.
    run.start_launcher()
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed)
    assert uid


def test_a_launcher_that_is_told_to_stop_deletes_its_job(train):
    run = train()
    run.wait_for_step(40)
    kubectl("-n", run.namespace, "delete", "pod", run.launcher, "--wait=false")
    began = time.monotonic()
    run.wait_until(lambda: not run.job_exists(), 30, "the job's deletion")
    print(f"the job was gone {time.monotonic() - began:.1f} s after the request")
    assert run.completion() is None


def test_an_operator_that_is_away_for_a_minute_costs_nothing(train, undisturbed):
    scale = ("-n", "kubeflow", "scale", "deployment", "training-operator", "--replicas")
    run = train()
    run.wait_for_step(40)
    kubectl(*scale, "0")
    try:
        time.sleep(20)
    finally:
        kubectl(*scale, "1")
    assert run.finish() == 0, run.log()
    assert_same(run, undisturbed)


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
    assert not run.job_exists()


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
    assert not run.job_exists()


def test_an_error_in_the_users_code_ends_the_job_with_its_message(train):
    run = train(hyperparameters={"units": "not a list of numbers"})
    code = run.finish()
    assert code in (64, 70), run.log()
    assert "worker" in run.log().rstrip().splitlines()[-1]
    assert not run.job_exists()


def test_a_field_that_the_cluster_does_not_know_is_refused_before_anything_starts(train):
    run = train(
        kubernetes={"volume_mounts": [{"name": "x", "mountPath": "/x", "sizeLimit": "1Gi"}]}
    )
    assert run.finish() == 64
    assert "sizeLimit" in run.log()
    assert not run.job_exists()


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


def test_every_overlay_is_accepted_by_the_server(cluster, namespace):
    done = subprocess.run(
        ["kubectl", "apply", "-n", namespace, "--dry-run=server", "-k", "manifests/base"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
