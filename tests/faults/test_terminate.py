"""SIGTERM (preemption, drain, deletion) to one worker or to all, at every moment of a run."""

import os
import signal

import pytest

from components.contracts.checkpoint import committed_steps
from components.contracts.errors import EXIT_TERMINATED
from tests.faults.checks import assert_same_run

# Phases in which the signal arrives, by the step from which on it is sent.
MOMENTS = {
    "start-up": ("start-up", -1),
    "rendezvous": ("rendezvous", -1),
    "build": ("build", -1),
    "first-step": ("first_step", -1),
    "mid-step": ("step", 100),
    "checkpoint": ("checkpoint", 100),
    "evaluation": ("evaluation", 100),
    "final-barrier": ("barrier", 100),
}
TOTAL_STEPS = 360


@pytest.fixture(params=MOMENTS.values(), ids=MOMENTS.keys())
def at_a_moment(request, train):
    """Start a run and wait until the chief, whose phases all workers share, is at a moment."""
    phase, after = request.param

    def start():
        # Calls of one step at most: the moments between them are short.
        process = train(validation_split="eval", steps_per_call=1 if phase == "step" else 0)
        if phase == "start-up":
            process.wait_until(lambda: process.trainers(0) and process.trainers(1), pause=0.01)
        else:
            process.wait_for_phase(0, phase, after=after, pause=0)
        return process

    return start


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 1], ids=["chief", "other"])
def test_one_terminated_worker_is_replaced(at_a_moment, undisturbed_validated, worker):
    process = at_a_moment()
    pid = process.supervisor(worker)
    if pid is not None:  # it may have ended by itself at the final barrier
        os.kill(pid, signal.SIGTERM)
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed_validated)


@pytest.mark.faults
def test_a_terminated_run_is_continued(at_a_moment, train, undisturbed_validated):
    process = at_a_moment()
    step = max(committed_steps(process.store), default=0)
    process.process.send_signal(signal.SIGTERM)
    code = process.finish(limit=40)
    assert code == EXIT_TERMINATED or (code == 0 and process.completion), process.log
    process.close()
    newest = max(committed_steps(process.store), default=0)
    if 0 < step < TOTAL_STEPS and process.completion is None:
        assert newest > step  # the state was committed when it was told to stop
    again = train(validation_split="eval")
    assert again.finish() == 0, again.log
    assert_same_run(again, undisturbed_validated)
    assert f"starts at step {newest}" in again.log or again.completion.num_restarts == 0
