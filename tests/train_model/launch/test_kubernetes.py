"""The launcher against a cluster that fails, forgets and restarts it at any moment."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from components.contracts.errors import (
    EXIT_BAD_INPUT,
    EXIT_PERMANENT,
    EXIT_TERMINATED,
    InputError,
    RelayError,
    is_retryable,
)
from tests.servers.kubernetes_api import container, kubernetes_api
from tests.train_model.launch.conftest import Killed, World


def test_a_run_is_complete_when_storage_says_so(world):
    world.start()
    world.wait_for_job()
    world.report(step=5, target=10, incarnation=1)
    world.complete()
    assert world.finish() == "complete"
    assert world.cluster.num_created == 1


def test_a_launcher_that_is_started_again_adopts_the_job(world):
    world.start()
    world.wait_for_job()
    world.kill()
    world.start()
    world.complete()
    assert world.finish() == "complete"
    assert world.cluster.num_created == 1


def test_a_job_of_another_run_is_explained_and_left_alone(world):
    body = {
        "metadata": {
            "name": world.name,
            "annotations": {"relay/run-uri": world.uri, "relay/fingerprint": "other"},
        }
    }
    world.cluster.create_job(body)
    world.start()
    outcome = world.finish()
    assert outcome.exit_code == EXIT_BAD_INPUT
    assert "another run's" in str(outcome)
    assert "kubectl -n team delete tfjob" in str(outcome)
    assert world.name in world.cluster.jobs


def test_a_job_that_failed_before_the_launcher_came_back_is_reported_and_deleted(world):
    world.start()
    world.wait_for_job()
    world.kill()
    world.end_worker(1, 70, "loss is nan at step 12")
    world.cluster.set_condition(world.name, "Failed", "1 Worker replica failed")
    world.start()
    outcome = world.finish()
    assert outcome.exit_code == EXIT_PERMANENT
    assert "worker 1: loss is nan at step 12" in str(outcome)
    assert world.cluster.jobs == {}


def test_the_request_to_delete_goes_out_at_once_when_told_to_stop(world):
    world.start()
    world.wait_for_job()
    world.launcher.stop()
    assert world.cluster.jobs == {}
    assert world.finish().exit_code == EXIT_TERMINATED
    assert world.cluster.num_created == 1


def test_a_job_that_the_operator_gave_up_is_made_again(world):
    world.start()
    world.wait_for_job()
    world.cluster.set_condition(world.name, "Failed", "pod was drained")
    world.wait_until(lambda: world.cluster.num_created == 2)
    world.wait_for_job()
    world.complete()
    assert world.finish() == "complete"


def test_a_job_that_somebody_deleted_is_made_again(world):
    world.start()
    world.wait_for_job()
    world.cluster.delete_job(world.name)
    world.wait_until(lambda: world.cluster.num_created == 2)
    world.complete()
    assert world.finish() == "complete"


def test_a_pod_on_a_lost_node_is_removed_by_force(world):
    world.start()
    world.wait_for_job()
    pod = world.cluster.pods[f"{world.name}-worker-1"]
    pod["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
    world.wait_until(lambda: f"{world.name}-worker-1" not in world.cluster.pods)
    world.complete()
    assert world.finish() == "complete"


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("create", "tfjobs"), ("delete", "tfjobs"), ("list", "pods"), ("get", "pods")],
)
def test_a_missing_right_is_told_in_one_message_before_anything_is_made(world, verb, resource):
    world.cluster.denied.add((verb, resource))
    world.start()
    outcome = world.finish()
    assert isinstance(outcome, InputError)
    for text in (verb, resource, "system:serviceaccount:team:runner", "Role relay-launcher"):
        assert text in str(outcome)
    assert world.cluster.num_created == 0


def test_a_refusal_is_not_retried(world):
    world.cluster.fault = lambda method, path: (
        403 if (method, path.rpartition("/")[2]) == ("POST", "tfjobs") else None
    )
    world.start()
    assert world.finish().exit_code == EXIT_BAD_INPUT
    assert len([r for r in world.cluster.requests if r[0] == "POST" and "tfjobs" in r[1]]) == 1


@pytest.mark.parametrize("fault", [429, 500, 503, "drop", "slow"])
def test_trouble_with_every_second_call_costs_nothing_but_time(world, fault):
    calls = iter(range(10**6))
    world.cluster.fault = lambda method, path: fault if next(calls) % 2 else None
    world.start()
    world.wait_for_job()
    world.complete()
    assert world.finish() == "complete"
    assert world.cluster.num_created == 1


def test_the_last_lines_of_a_worker_come_into_the_log(world, caplog):
    caplog.set_level("INFO", "relay.launcher")
    world.start()
    world.wait_for_job()
    line = '2026-01-01T00:00:00.000000000Z {"level": "warning", "message": "disk is slow"}\n'
    world.cluster.logs[f"{world.name}-worker-1"] = line
    world.wait_until(lambda: "[worker 1] warning: disk is slow" in caplog.text)
    world.complete()
    assert world.finish() == "complete"


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 16))
def test_a_launcher_killed_at_any_call_is_replaced_and_one_job_results(world, number, side):
    def kill(current):
        if current == number and world.launcher is not None:
            for connection in (world.launcher._api, world.launcher._stop_api):
                connection.killed = True

    setattr(world.cluster, side, kill)
    world.start()
    world.wait_until(lambda: world.outcome is not None or world.cluster.jobs)
    if not isinstance(world.outcome, Killed):
        world.wait_until(lambda: isinstance(world.outcome, Killed))
    world.start()
    world.wait_for_job()
    world.complete()
    assert world.finish() == "complete"
    assert world.cluster.num_created == 1


EVENTS = (
    *("progress", "checkpoint", "kill worker", "drain", "user error", "delete job", "lost node"),
    *("api 500", "api 429", "api drop", "api 409", "api well", "restart launcher", "terminate"),
)


@pytest.mark.faults
@settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example takes seconds to shrink
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=8))
def test_whatever_happens_it_ends_rightly_and_leaves_no_job_behind(tmp_path_factory, fast, events):
    folder = tmp_path_factory.mktemp("world")
    with kubernetes_api(folder) as (cluster, config):
        world = World(cluster, config, (folder / "run").as_uri())
        world.start()
        play = _Play(world)
        for event in events:
            play.act(event)
        outcome = play.end()
    complete = play.completed
    assert (outcome == "complete") == complete
    if complete:
        return
    assert isinstance(outcome, RelayError)
    assert play.terminated or play.failed or is_retryable(outcome.exit_code)
    assert cluster.jobs == {}, f"{outcome} left a job"


class _Play:
    """The operator, the workers and the person, acting in some order."""

    def __init__(self, world):
        self.world = world
        self.step = self.committed = 0
        self.completed = self.terminated = self.failed = False

    def act(self, event):
        world, cluster = self.world, self.world.cluster
        if event.startswith("api"):
            kind = event.split()[1]
            fault = {"well": None, "drop": "drop"}.get(kind, kind)
            fault = int(fault) if str(fault).isdigit() else fault
            # The cluster is never wholly away: every third call is served.
            calls = iter(range(10**6))
            cluster.fault = lambda m, p: fault if fault and next(calls) % 3 else None
        elif event == "restart launcher" and self.running():
            world.kill()
            world.start()
        elif event == "terminate" and self.running():
            self.terminated = True
            world.launcher.stop()
        elif self.running() and self.has_job():
            getattr(self, event.replace(" ", "_"))()

    def progress(self):
        self.step += 1
        self.world.report(step=self.step, target=100, incarnation=1, committed=self.committed)

    def checkpoint(self):
        self.committed = self.step
        self.progress()

    def kill_worker(self):
        self.world.end_worker(1, 137)
        self.world.cluster.make_pod(self.world.name, 1)

    def drain(self):
        self.world.cluster.set_condition(self.world.name, "Failed", "drained")

    def user_error(self):
        self.world.end_worker(0, 70, "ValueError: in user code")
        self.world.cluster.set_condition(self.world.name, "Failed", "replica failed")

    def delete_job(self):
        self.world.cluster.delete_job(self.world.name)

    def lost_node(self):
        pod = self.world.cluster.pods.get(f"{self.world.name}-worker-1")
        if pod:
            pod["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"

    def running(self):
        return self.world.thread.is_alive() and not self.terminated

    def has_job(self):
        """Wait for the job, as the operator does; false if the launcher ended first."""
        world = self.world
        world.wait_until(lambda: world.cluster.jobs or not world.thread.is_alive())
        if world.cluster.jobs and not world.cluster.pods:
            for worker in range(2):
                world.cluster.make_pod(world.name, worker, container({"running": {}}))
        return bool(world.cluster.jobs)

    def end(self):
        world = self.world
        world.cluster.fault = lambda method, path: None
        failed = any(
            pod["status"]["containerStatuses"][0]["state"].get("terminated", {}).get("exitCode")
            == 70
            for pod in world.cluster.pods.values()
        )
        if self.running() and not failed and self.has_job():
            # Only the launcher decides on a job that has failed; a live one runs to its end.
            world.complete()
            self.completed = True
        elif failed or world.outcome is not None:
            self.failed = True
        return world.finish(30)
