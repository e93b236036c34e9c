"""The trainer: one process of one incarnation. Started by a supervisor, waits for its assignment.

The imports are done before the assignment is read, so the same program is a warm spare: it sits
there, its TensorFlow runtime untouched, until a line on standard input says what to do.
"""

import ctypes
import dataclasses
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.contracts.errors import EXIT_OK, RetryableError, report
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.logs import set_up_logging

_PR_SET_PDEATHSIG = 1
HEARTBEAT_VARIABLE = "RELAY_HEARTBEAT"

log = logging.getLogger("relay.worker")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a supervisor tells its trainer, as one line of JSON.

    Attributes:
        options: fields of TrainOptions.
        run_uri: where the run lies.
        fingerprint: of the run.
        worker: index of this worker.
        members: trainer addresses by index, empty for a single worker.
        incarnation: fencing token.
        restore_step: checkpoint to start from, -1 for none.
        holder: host:port of a supervisor whose local tier holds it, "" for the object store.
        token: shown to that supervisor.
        num_restarts: restarts of the run so far.
        tier: folder of the local tier, "" for none.
        cache: folder for shards.
        started: when the run was first started, epoch seconds.
        last_progress: when the previous incarnation last made a step, 0 if unknown.
        decided: when this incarnation was decided on.
        cause: why the previous incarnation ended.
    """

    options: Mapping[str, Any]
    run_uri: str
    fingerprint: str
    worker: int
    members: tuple[str, ...]
    incarnation: int
    restore_step: int
    holder: str
    token: str
    num_restarts: int
    tier: str
    cache: str
    started: float
    last_progress: float
    decided: float
    cause: str

    @classmethod
    def from_line(cls, line: str) -> "Assignment":
        """Read what `to_line` wrote."""
        data = json.loads(line)
        return cls(**{**data, "members": tuple(data["members"])})

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_OK)


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
        code = report(_classified(error))
    heartbeat.beat("done")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _classified(error: BaseException) -> BaseException:
    """TensorFlow's ways of saying that a peer is lost, as a retryable error."""
    module = type(error).__module__
    lost = ("UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError")
    if module.startswith("tensorflow") and type(error).__name__ in lost:
        first = str(error).strip().splitlines()[0]
        return RetryableError(f"a peer was lost ({type(error).__name__}): {first}")
    if module.startswith("tensorflow") and type(error).__name__ == "InternalError":
        text = str(error)
        if "Collective" in text or "coordination" in text or "RPC" in text:
            return RetryableError(f"a peer was lost (InternalError): {text.splitlines()[0]}")
    if isinstance(error, MemoryError):
        return RetryableError("out of memory (MemoryError)")
    return error


if __name__ == "__main__":
    main()
