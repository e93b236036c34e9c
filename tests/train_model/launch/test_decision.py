"""What the launcher does about each state of a job: decided without a cluster."""

import pytest

from components.contracts.errors import (
    EXIT_BAD_INPUT,
    EXIT_PERMANENT,
    EXIT_RETRYABLE,
    EXIT_STALLED,
)
from components.train_model.launch.decision import (
    Create,
    Delete,
    Evict,
    Fail,
    Finish,
    Memory,
    Seen,
    Wait,
    decide,
)
from components.train_model.launch.options import KubernetesOptions
from components.train_model.launch.view import Job, Pod
from components.train_model.worker.lease import LEASE_MESSAGE
from components.train_model.worker.status import Status

PLACE = KubernetesOptions(image="relay:1", pending_secs=100, stall_secs=1000, max_recreations=2)
RUNNING = Job(uid="u1", run_uri="gs://b/r", fingerprint="f", deleting=False, state="running")
FAILED = Job(uid="u1", run_uri="gs://b/r", fingerprint="f", deleting=False, state="failed")
SUCCEEDED = Job(uid="u1", run_uri="gs://b/r", fingerprint="f", deleting=False, state="succeeded")


def seen(now=0.0, job=RUNNING, pods=None, complete=False, status=None, age=0.0):
    pods = (pod(0), pod(1)) if pods is None else pods
    return Seen(
        now=now,
        job=job,
        pods=tuple(pods),
        workers=2,
        status=status or Status(),
        complete=complete,
        age=age,
    )


def pod(worker, uid="", **fields):
    return Pod(name=f"job-worker-{worker}", uid=uid or f"pod-{worker}", worker=worker, **fields)


def test_without_a_job_one_is_made():
    assert isinstance(decide(seen(job=None, pods=()), Memory(), PLACE), Create)


def test_running_workers_are_left_alone():
    assert decide(seen(), Memory(), PLACE) == Wait()


def test_a_complete_run_waits_for_the_workers_to_end_and_then_removes_a_job_that_does_not():
    memory = Memory()
    assert isinstance(decide(seen(0, complete=True), memory, PLACE), Wait)
    assert decide(seen(500, complete=True), memory, PLACE) == Finish(delete=True)


@pytest.mark.parametrize("job", [SUCCEEDED, FAILED, None], ids=["succeeded", "failed", "gone"])
def test_a_complete_run_is_finished_whatever_became_of_its_job(job):
    assert decide(seen(job=job, complete=True), Memory(), PLACE) == Finish(delete=False)


def test_success_without_a_complete_run_is_a_failure():
    memory = Memory()
    assert isinstance(decide(seen(0, SUCCEEDED), memory, PLACE), Wait)
    action = decide(seen(60, SUCCEEDED), memory, PLACE)
    assert action.error.exit_code == EXIT_PERMANENT
    assert "complete.json" in str(action.error)


@pytest.mark.parametrize(
    ("code", "expected"), [(64, EXIT_BAD_INPUT), (70, EXIT_PERMANENT), (1, EXIT_PERMANENT)]
)
def test_a_worker_that_failed_for_good_fails_the_step_with_its_message(code, expected):
    pods = (pod(0), pod(1, exit_code=code, message="loss is nan at step 12"))
    action = decide(seen(job=FAILED, pods=pods), Memory(), PLACE)
    assert action.error.exit_code == expected
    assert "worker 1" in str(action.error)
    assert "loss is nan at step 12" in str(action.error)


def test_a_worker_that_failed_for_good_fails_the_step_without_an_operator_too():
    memory = Memory()
    pods = (pod(0), pod(1, exit_code=70, message="broken"))
    assert isinstance(decide(seen(0, pods=pods), memory, PLACE), Wait)
    assert isinstance(decide(seen(60, pods=pods), memory, PLACE), Fail)


@pytest.mark.parametrize("code", [137, 143, 200, 202])
def test_a_retryable_end_is_the_operators_to_mend(code):
    memory = Memory()
    for now in (0, 60):
        action = decide(seen(now, pods=(pod(0), pod(1, exit_code=code))), memory, PLACE)
        assert action == Wait()


def test_a_job_given_up_for_the_clusters_reasons_is_made_again_within_a_budget():
    memory = Memory()
    for _ in range(PLACE.max_recreations + 1):
        assert isinstance(decide(seen(job=FAILED, pods=()), memory, PLACE), Delete)
        memory.recreations += 1
    action = decide(seen(job=None, pods=()), memory, PLACE)
    assert action.error.exit_code == EXIT_RETRYABLE
    assert "max_recreations 2" in str(action.error)


def test_a_new_checkpoint_refills_the_budget_of_recreations():
    memory = Memory(recreations=3)
    decide(seen(status=Status(committed=100)), memory, PLACE)
    assert memory.recreations == 0


def test_workers_that_ended_for_want_of_a_launcher_are_started_anew():
    pods = (pod(0, exit_code=70, message=f"{LEASE_MESSAGE}: nobody renewed it"), pod(1))
    assert isinstance(decide(seen(job=FAILED, pods=pods), Memory(), PLACE), Delete)


def test_a_pod_on_a_lost_node_is_removed_by_force_only_past_its_grace_period():
    alive = pod(0, deleting=True, grace_over=PLACE.lost_node_secs - 1)
    lost = pod(1, deleting=True, grace_over=PLACE.lost_node_secs + 1)
    assert decide(seen(pods=(alive, lost)), Memory(), PLACE) == Evict(pods=(lost,))


@pytest.mark.parametrize(
    ("trouble", "code", "text"),
    [
        ({"image_trouble": "ErrImagePull: not found"}, EXIT_BAD_INPUT, "image cannot be pulled"),
        ({"config_trouble": "CreateContainerConfigError: x"}, EXIT_BAD_INPUT, "cannot be made"),
        ({"unschedulable": "Unschedulable: 2 Insufficient cpu"}, EXIT_RETRYABLE, "fits no node"),
    ],
)
def test_a_worker_that_cannot_start_is_reported_at_once_and_fails_past_the_limit(
    trouble, code, text
):
    memory = Memory()
    pods = (pod(0), pod(1, **trouble))
    assert text in decide(seen(0, pods=pods), memory, PLACE).report
    action = decide(seen(101, pods=pods), memory, PLACE)
    assert action.error.exit_code == code
    assert text in str(action.error)


def test_trouble_that_passes_starts_its_clock_anew():
    memory = Memory()
    stuck = (pod(0), pod(1, unschedulable="Unschedulable: no"))
    decide(seen(0, pods=stuck), memory, PLACE)
    decide(seen(90), memory, PLACE)
    assert isinstance(decide(seen(120, pods=stuck), memory, PLACE), Wait)


def test_an_image_name_that_can_never_work_fails_at_once():
    pods = (pod(0), pod(1, image_trouble="InvalidImageName: bad"))
    assert isinstance(decide(seen(pods=pods), Memory(), PLACE), Fail)


def test_pods_that_are_never_made_are_reported():
    memory = Memory()
    assert "no pod of worker 1" in decide(seen(0, pods=(pod(0),)), memory, PLACE).report
    assert isinstance(decide(seen(101, pods=(pod(0),)), memory, PLACE), Fail)


def test_a_restart_loop_without_a_checkpoint_ends_with_the_last_words():
    memory = Memory()
    for life in range(PLACE.max_pod_starts + 1):
        pods = (pod(0), pod(1, uid=f"life-{life}", exit_code=139, reason="Error"))
        action = decide(seen(life, pods=pods), memory, PLACE)
    assert action.error.exit_code == EXIT_PERMANENT
    assert "worker 1 was started 21 times" in str(action.error)
    assert "exit code 139" in str(action.error)


def test_a_job_without_any_progress_is_ended_as_stalled():
    memory = Memory()
    decide(seen(0, status=Status(step=10)), memory, PLACE)
    assert decide(seen(900, status=Status(step=10)), memory, PLACE) == Wait()
    action = decide(seen(1001, status=Status(step=10)), memory, PLACE)
    assert action.error.exit_code == EXIT_STALLED
    assert "step 10" in str(action.error)


def test_the_deadline_is_kept_by_the_launchers_own_clock():
    place = KubernetesOptions(image="relay:1", deadline_secs=60)
    assert decide(seen(age=59), Memory(), place) == Wait()
    assert "deadline_secs is 60" in str(decide(seen(age=61), Memory(), place).error)


def test_an_out_of_memory_kill_is_named_with_its_remedy():
    memory = Memory()
    for life in range(PLACE.max_pod_starts + 1):
        pods = (pod(0), pod(1, uid=f"life-{life}", exit_code=137, reason="OOMKilled"))
        action = decide(seen(life, pods=pods), memory, PLACE)
    assert "out of memory" in str(action.error)
    assert "resources.limits.memory" in str(action.error)
