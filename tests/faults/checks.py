"""What must hold after every fault."""

import numpy as np


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
    seconds = sum(process.completion.goodput.values())
    assert min(process.completion.goodput.values()) >= 0
    return seconds


def losses(completion):
    """(step, number of steps, loss) of every record: each step must be in exactly one."""
    records = [
        (record["step"], record["steps"], record["loss"])
        for record in completion.history
        if "loss" in record
    ]
    assert sum(count for _, count, _ in records) == completion.step
    return records
