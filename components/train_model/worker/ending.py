"""How a trainer has ended, or why its supervisor ends it."""

import signal
from dataclasses import dataclass

from components.contracts.errors import (
    EXIT_OK,
    EXIT_RETRYABLE,
    EXIT_STALLED,
    EXIT_TERMINATED,
    RelayError,
    error_for,
)
from components.train_model.worker.agreement import PEER_LOST
from components.train_model.worker.heartbeat import Beat
from components.train_model.worker.trainer_process import TrainerProcess

OUT_OF_MEMORY = (
    "out of memory: give the worker more (resources.limits.memory on a cluster) or lower batch_size"
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a trainer ended.

    Attributes:
        code: exit code for the container if the run ends here.
        cause: for people, empty if it was asked to end.
        reason: one word for the metric.
    """

    code: int
    cause: str
    reason: str


def ended(trainer: TrainerProcess, code: int, *, out_of_memory: bool) -> Ending:
    """A trainer that has ended by itself or by a signal."""
    message = trainer.message()
    beat = trainer.beat()
    where = f"at step {beat.step} in phase {beat.phase}"
    if code in (EXIT_OK, EXIT_TERMINATED):
        return Ending(code=code, cause="", reason="terminated")
    if code < 0:
        text = f"trainer killed by {signal.Signals(-code).name} {where}"
        if out_of_memory:
            return Ending(code=EXIT_RETRYABLE, cause=f"{text}: {OUT_OF_MEMORY}", reason="oom")
        return Ending(code=EXIT_RETRYABLE, cause=text, reason="killed")
    reason = "peer" if message.startswith(PEER_LOST) else "error"
    cause = message or f"trainer ended with exit code {code} {where}"
    return Ending(code=code, cause=cause, reason=reason)


def stalled(trainer: TrainerProcess, beat: Beat, age: float, limit: float) -> Ending:
    """A trainer that shows no progress: its stacks go to the log first."""
    trainer.dump_stacks()
    return Ending(
        code=EXIT_STALLED,
        cause=f"no progress for {age:.1f} s in phase {beat.phase} at step {beat.step} "
        f"(limit {limit:g} s, option limits); its stacks are in the log",
        reason="stalled",
    )


def given_up(trainer: TrainerProcess, beat: Beat, age: float, patience: float) -> Ending:
    """A peer has ended the incarnation: because this trainer stood still, if it did for long."""
    if age < patience:
        return Ending(code=EXIT_RETRYABLE, cause="", reason="peer")
    trainer.dump_stacks()
    return Ending(
        code=EXIT_RETRYABLE,
        cause=f"stood still for {age:.1f} s in phase {beat.phase} at step {beat.step} when the "
        "others gave up; its stacks are in the log",
        reason="stalled",
    )


def error_of(ending: Ending) -> RelayError:
    """The error that ends the run with an ending."""
    message = ending.cause or f"the trainer ended with exit code {ending.code}"
    return error_for(ending.code, message)
