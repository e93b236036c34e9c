"""Processes killed in the middle of training: the run completes as if nothing had happened."""

import os
import signal

import pytest

from components.contracts.errors import EXIT_TERMINATED
from tests.faults.checks import assert_same_run


def test_a_killed_trainer_costs_nothing_but_time(train, undisturbed):
    process = train()
    process.wait_for_step(100)
    os.kill(process.trainers(1)[0], signal.SIGKILL)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)
    assert process.completion.num_restarts == 1
    assert "worker 1: warning: trainer killed by SIGKILL" in process.log


def test_a_killed_chief_supervisor_takes_its_trainer_along_and_is_replaced(train, undisturbed):
    process = train()
    process.wait_for_step(100)
    trainers = process.trainers(0)
    os.kill(process.supervisor(0), signal.SIGKILL)
    process.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in trainers), 5)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)


def test_a_terminated_run_commits_its_step_and_is_continued_from_it(train, undisturbed):
    process = train()
    process.wait_for_step(100)
    process.process.send_signal(signal.SIGTERM)
    assert process.finish() == EXIT_TERMINATED, process.log
    assert process.completion is None
    process.close()
    again = train()
    assert again.finish() == 0, again.log
    assert_same_run(again, undisturbed)
    assert again.completion.num_restarts == 1


def test_a_killed_launcher_leaves_nothing_behind(train):
    process = train()
    process.wait_for_step(20)
    process.process.kill()
    process.process.wait()
    process.close()
    assert process.leftovers() == []


def test_a_finished_run_trains_no_further_step(train, undisturbed):
    process = train()
    assert process.finish() == 0, process.log
    process.close()
    again = train()
    assert again.finish(limit=60) == 0, again.log
    assert "incarnation" not in again.log
    assert_same_run(again, undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 1], ids=["chief", "other"])
@pytest.mark.parametrize("target", ["trainer", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_any_process_killed_or_frozen(train, undisturbed, worker, target, number):
    process = train(limits={"step": 5}, heartbeat_secs=3)
    process.wait_for_step(100)
    pid = process.supervisor(worker) if target == "supervisor" else process.trainers(worker)[0]
    os.kill(pid, number)
    if target == "supervisor" and number == signal.SIGSTOP:
        # As the kubelet does when /healthz no longer answers.
        os.kill(pid, signal.SIGKILL)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)
