"""One run disturbed at 50 random moments."""

import contextlib
import os
import random
import signal
import time

import pytest

from tests.faults.checks import assert_same_run
from tests.faults.conftest import finished

MOMENTS = 50


OPTIONS = {
    "epochs": 400,
    "checkpoint_steps": 20,
    "max_restarts": 60,
    "limits": {"step": 6},
    "heartbeat_secs": 4,
    "log_secs": 60,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, dataset_uri):
    """Arrays and completion of the same run, undisturbed."""
    return finished(tmp_path_factory.mktemp("reference"), dataset_uri, **OPTIONS)


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_disturbed_at_50_random_moments_ends_bit_identical(train, reference, seed):
    generator = random.Random(seed)
    process = train(**OPTIONS)
    hits = 0
    while hits < MOMENTS and process.process.poll() is None:
        time.sleep(generator.uniform(0.2, 7.0))
        worker = generator.randrange(2)
        number = generator.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        # Trainers ignore SIGTERM: theirs is for their supervisor to take.
        with_trainers = number != signal.SIGTERM and generator.random() < 0.5
        targets = process.trainers(worker) if with_trainers else [process.supervisor(worker)]
        with contextlib.suppress(ProcessLookupError, TypeError, IndexError):
            os.kill(generator.choice(targets), number)
            hits += 1
    assert hits == MOMENTS, f"the run ended after {hits} moments:\n{process.log}"
    assert process.finish(limit=600) == 0, process.log
    assert_same_run(process, reference)
    assert process.completion.num_restarts >= MOMENTS // 4
