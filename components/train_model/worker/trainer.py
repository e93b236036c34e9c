"""The trainer: one process of one incarnation. Started by a supervisor, waits for its assignment.

The imports are done before the assignment is read, so the same program is a warm spare: it sits
there, its TensorFlow runtime untouched, until a line on standard input says what to do.
"""

import faulthandler
import logging
import os
import re
import signal
import sys
import traceback
from pathlib import Path

from components.contracts.errors import (
    EXIT_OK,
    PermanentError,
    RetryableError,
    as_relay_error,
    report,
)
from components.train_model.worker.agreement import PEER_LOST
from components.train_model.worker.assignment import (
    HEARTBEAT_VARIABLE,
    Assignment,
    die_with_parent,
)
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.logs import set_up_logging

# A line that says something, among those of a stack that follows a heading.
_HEADINGS = ("Graph execution error", "in user code")
_SAYS = re.compile(r"Collective ops is|(\w+\.)*\w+(Error|Exception): ")

log = logging.getLogger("relay.worker")


def main() -> None:
    """Import, wait, train; leaves by os._exit, since TensorFlow's own exit takes seconds."""
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C reaches the supervisor too
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    set_up_logging()
    heartbeat = Heartbeat(Path(os.environ[HEARTBEAT_VARIABLE]))
    try:
        from components.train_model.worker import training  # TensorFlow: seconds

        heartbeat.beat("waiting")
        line = sys.stdin.readline()
        code = training.train(Assignment.from_line(line), heartbeat) if line else EXIT_OK
    except BaseException as error:
        code = report(_explained(_classified(error), heartbeat))
    heartbeat.beat("done")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _classified(error: BaseException) -> BaseException:
    """TensorFlow's ways of saying that a peer is lost, as a retryable error."""
    module = type(error).__module__
    lost = ("UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError")
    if module.startswith("tensorflow") and type(error).__name__ in lost:
        return RetryableError(f"{PEER_LOST} ({type(error).__name__}): {_told(error)}")
    if module.startswith("tensorflow") and type(error).__name__ == "InternalError":
        text = str(error)
        if "Collective" in text or "coordination" in text or "RPC" in text:
            return RetryableError(f"{PEER_LOST} (InternalError): {_told(error)}")
    if isinstance(error, MemoryError):
        return RetryableError("out of memory (MemoryError)")
    return error


def _told(error: BaseException) -> str:
    """The line of a message that says what happened; TensorFlow puts stacks of graphs before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if not lines[0].startswith(_HEADINGS):
        return lines[0]
    return next((line for line in lines if _SAYS.match(line)), lines[-1])


def _explained(error: BaseException, heartbeat: Heartbeat) -> BaseException:
    """Where an unforeseen error, most often of the user's code, struck; its traceback is logged."""
    if as_relay_error(error) is not None:
        return error
    traceback.print_exception(error)
    beat = heartbeat.read()
    return PermanentError(
        f"{type(error).__name__} after step {beat.step} in phase {beat.phase}: {_told(error)}. Its "
        "traceback is in this worker's log: correct the model module or the data, and start again"
    )


if __name__ == "__main__":
    main()
