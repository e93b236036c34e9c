"""User code that hangs, raises, exits or is killed again and again."""

import pytest

from components.contracts.errors import EXIT_PERMANENT
from tests.faults.checks import assert_same_run


@pytest.mark.parametrize(
    ("moment", "worker"),
    [
        ("step", 1),
        pytest.param("step", 0, marks=pytest.mark.faults),
        pytest.param("build", 0, marks=pytest.mark.faults),
        pytest.param("build", 1, marks=pytest.mark.faults),
    ],
)
def test_a_main_thread_stuck_in_user_code_is_found_and_replaced(
    train_hooked, hooks, undisturbed, moment, worker
):
    if moment == "build":
        (hooks / f"build-stuck-{worker}").touch()
    process = train_hooked(limits={"step": 4, "build": 15}, collective_timeout_secs=30)
    if moment == "step":
        process.wait_for_step(100)
        (hooks / f"step-stuck-{worker}").touch()
    assert process.finish() == 0, process.log
    assert_same_run(process, undisturbed)
    assert process.completion.num_restarts == 1
    cause = process.completion.restarts[0]["cause"]
    assert f"worker {worker}: no progress for" in cause or f"worker {worker}: stood still" in cause
    assert "hooked_model.py" in process.log  # where it hangs is in the stack dump


@pytest.mark.parametrize("worker", [0, pytest.param(1, marks=pytest.mark.faults)])
def test_a_user_exception_ends_the_run_with_its_place(train_hooked, hooks, worker):
    process = train_hooked()
    process.wait_for_step(40)
    (hooks / f"step-raise-{worker}").touch()
    assert process.finish() == EXIT_PERMANENT, process.log
    assert process.completion is None
    for text in (f"worker {worker}: ", "after step", "the price of a flight must be positive"):
        assert text in process.message, process.message


@pytest.mark.faults
@pytest.mark.parametrize("worker", [0, 1])
def test_exit_code_137_again_and_again_ends_as_likely_out_of_memory(train_hooked, hooks, worker):
    process = train_hooked(max_restarts=2)
    process.wait_for_step(40)
    (hooks / f"step-exit137-{worker}").touch()
    assert process.finish() == EXIT_PERMANENT, process.log
    for text in ("3 starts with no progress since step", f"worker {worker}: ", "out of memory"):
        assert text in process.message, process.message
    assert "Lower batch_size" in process.message


@pytest.mark.faults
def test_user_code_that_exits_with_0_does_not_complete_a_run(train_hooked, hooks):
    process = train_hooked()
    process.wait_for_step(40)
    (hooks / "step-exit0-1").touch()
    assert process.finish() == EXIT_PERMANENT, process.log
    assert "ended with 0 before the run was complete" in process.message
    assert process.completion is None
