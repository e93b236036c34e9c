"""What a supervisor tells its trainer, and how the two find each other."""

import ctypes
import dataclasses
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

from components.contracts.errors import EXIT_OK

HEARTBEAT_VARIABLE = "RELAY_HEARTBEAT"
_PR_SET_PDEATHSIG = 1


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
