"""What must hold after every fault."""

import numpy as np

from tests.train_model.test_event_files import scalars


def assert_same_run(process, undisturbed):
    """The run has completed with the weights and the losses of an undisturbed one."""
    arrays, completion = undisturbed
    assert process.completion is not None, process.log
    assert process.completion.step == completion.step
    found = process.arrays()
    assert sorted(found) == sorted(arrays)
    different = [name for name in arrays if not np.array_equal(found[name], arrays[name])]
    assert different == []
    assert losses(process.completion) == losses(completion)
    assert validations(process.completion) == validations(completion)
    assert_event_files_tell_each_step_once(process)
    assert_every_second_is_accounted_for(process)


def assert_every_second_is_accounted_for(process):
    """The ledger's buckets sum to the wall time within 1 %."""
    goodput = process.completion.goodput
    assert min(goodput.values()) >= 0
    if "://" not in process.run_uri:
        # Writing the completion itself comes after the ledger's last line.
        assert abs(sum(goodput.values()) - process.wall_secs) < 0.01 * process.wall_secs + 0.2
    assert len(process.completion.restarts) == process.completion.num_restarts
    assert all(restart["cause"] for restart in process.completion.restarts)


def losses(completion):
    """(step, number of steps, loss) of every record: each step must be in exactly one."""
    records = [
        (record["step"], record["steps"], record["loss"])
        for record in completion.history
        if "loss" in record
    ]
    assert sum(count for _, count, _ in records) == completion.step
    return records


def validations(completion):
    """Every validation record, without its time."""
    records = [record for record in completion.history if "val_loss" in record]
    return [{name: value for name, value in r.items() if name != "time"} for r in records]


def assert_event_files_tell_each_step_once(process):
    if "://" not in process.run_uri:
        shown = [step for step, _ in scalars(process.run_uri)["train/loss"]]
        assert shown == [step for step, _, _ in losses(process.completion)]
