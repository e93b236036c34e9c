"""One run disturbed at 50 random moments."""

import os
import random
import signal
import time

import pytest

from tests.faults.checks import assert_same_run

MOMENTS = 50


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_killed_at_50_random_moments_completes_bit_identical(train, dataset_uri, seed):
    options = {
        "epochs": 200,
        "checkpoint_steps": 20,
        "max_restarts": 60,
        "limits": {"step": 6},
        "heartbeat_secs": 4,
        "log_secs": 60,
    }
    reference = train("undisturbed", **options)
    assert reference.finish() == 0, reference.log
    generator = random.Random(seed)
    process = train("tortured", **options)
    hits = 0
    while hits < MOMENTS and process.process.poll() is None:
        time.sleep(generator.uniform(0.5, 12.0))
        worker = generator.randrange(2)
        number = generator.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        if generator.random() < 0.5 and number != signal.SIGTERM:
            targets = process.trainers(worker)
        else:
            targets = [process.supervisor(worker)]
        targets = [pid for pid in targets if pid]
        if targets:
            try:
                os.kill(generator.choice(targets), number)
            except ProcessLookupError:
                continue
            hits += 1
    assert hits == MOMENTS, f"the run ended after {hits} moments"
    assert process.finish(limit=600) == 0, process.log
    assert_same_run(process, (reference.arrays(), reference.completion))
    assert process.completion.num_restarts >= MOMENTS // 4
