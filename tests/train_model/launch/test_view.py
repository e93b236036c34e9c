"""What the launcher reads out of the cluster's objects."""

import datetime

from components.train_model.launch.view import job_of, pods_of

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


def job(*conditions, **metadata):
    return job_of(
        {
            "metadata": {"uid": "u", **metadata},
            "status": {
                "conditions": [{"type": t, "status": s, "message": t} for t, s in conditions]
            },
        }
    )


def pod(status, **metadata):
    labels = {"training.kubeflow.org/replica-index": "1"}
    data = {"metadata": {"name": "n", "uid": "u", "labels": labels, **metadata}, "status": status}
    return pods_of([data], NOW)[0]


def test_a_jobs_state_is_found_wherever_its_condition_stands():
    assert job(("Failed", "True"), ("Created", "True"), ("Running", "False")).state == "failed"
    assert job(("Running", "True"), ("Succeeded", "False"), ("Created", "True")).state == "running"
    assert job(("Succeeded", "True"), ("Running", "False")).state == "succeeded"
    assert job_of({"metadata": {"uid": "u"}}).state == "running"


def test_a_job_of_somebody_else_has_no_run():
    assert (job().run_uri, job().fingerprint) == ("", "")


def test_an_ended_containers_code_and_words_are_read():
    ended = {"exitCode": 70, "reason": "Error", "message": "loss is nan"}
    found = pod({"containerStatuses": [{"name": "tensorflow", "state": {"terminated": ended}}]})
    assert (found.exit_code, found.message, found.reason) == (70, "loss is nan", "Error")
    assert found.worker == 1


def test_a_sidecars_end_is_not_the_workers():
    ended = {"exitCode": 1}
    statuses = [
        {"name": "proxy", "state": {"terminated": ended}},
        {"name": "tensorflow", "state": {"running": {"startedAt": "x"}}},
    ]
    found = pod({"containerStatuses": statuses})
    assert found.exit_code is None
    assert found.running


def test_an_evicted_pod_has_a_reason_and_no_exit_code():
    found = pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"})
    assert found.exit_code is None
    assert (found.reason, found.message) == ("Evicted", "The node was low on memory")


def test_what_keeps_a_container_from_starting_is_told_apart():
    def waiting(reason):
        state = {"waiting": {"reason": reason, "message": "why"}}
        return pod({"containerStatuses": [{"name": "tensorflow", "state": state}]})

    assert waiting("ImagePullBackOff").image_trouble == "ImagePullBackOff: why"
    assert waiting("CreateContainerConfigError").config_trouble.endswith(": why")
    quiet = waiting("ContainerCreating")
    assert (quiet.image_trouble, quiet.config_trouble) == ("", "")


def test_a_pod_that_fits_no_node_says_why():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available",
    }
    assert (
        pod({"conditions": [condition]}).unschedulable == "Unschedulable: 0/2 nodes are available"
    )


def test_the_time_past_a_deleted_pods_grace_period_is_counted_from_its_end():
    assert pod({}, deletionTimestamp="2026-01-01T11:59:30Z").grace_over == 30
    assert pod({}, deletionTimestamp="2026-01-01T12:00:30Z").grace_over == -30
    assert pod({}).deleting is False
