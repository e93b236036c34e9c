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
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 2], ids=["chief", "other"])
@pytest.mark.parametrize("target", ["trainer", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_any_of_three_workers_killed_or_frozen(train, undisturbed_three, worker, target, number):
    process = train(workers=3, limits={"step": 8}, heartbeat_secs=4)
    process.wait_for_step(100)
    pid = process.supervisor(worker) if target == "supervisor" else process.trainers(worker)[0]
    os.kill(pid, number)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed_three)


@pytest.mark.faults
@pytest.mark.parametrize("phase", ["rendezvous", "build", "first_step", "checkpoint", "barrier"])
def test_a_trainer_killed_in_any_phase(train, undisturbed, phase):
    process = train()
    process.wait_for_phase(1, phase, pause=0)
    for pid in process.trainers(1)[:1]:
        os.kill(pid, signal.SIGKILL)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)


@pytest.mark.faults
def test_a_frozen_spare_is_not_waited_for(train, undisturbed):
    process = train(epochs=30, limits={"imports": 10}, steps_per_call=1)
    process.wait_until(lambda: len(process.trainers(1)) == 2)
    trainer, spare = process.trainers(1)
    os.kill(spare, signal.SIGSTOP)
    os.kill(trainer, signal.SIGKILL)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)
