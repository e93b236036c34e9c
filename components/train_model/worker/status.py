"""What a run is doing, as an object in storage: written by worker 0, read by whoever follows it."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable

from components.contracts.errors import RelayError
from components.storage.base import Store
from components.storage.errors import ObjectNotFoundError

STATUS_NAME = "status.json"
STATUS_SECS = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """State of a run.

    Attributes:
        incarnation: number of the current one, 0 before the first.
        phase: of worker 0's trainer; agreement between incarnations.
        step: completed steps.
        target: steps after which training ends, 0 if not known yet.
        committed: step of the newest checkpoint that worker 0 knows to be committed, -1 for none.
        loss: of the last steps.
        steps_per_second: since the last restart.
        time: of writing, in seconds since the epoch.
    """

    incarnation: int = 0
    phase: str = "agreement"
    step: int = 0
    target: int = 0
    committed: int = -1
    loss: float = 0.0
    steps_per_second: float = 0.0
    time: float = 0.0

    @property
    def seconds_left(self) -> float:
        """Estimate from the rate since the last restart; 0 if there is none."""
        rate = self.steps_per_second
        return (self.target - self.step) / rate if rate > 0 else 0.0


def read_status(store: Store) -> Status:
    """What was written last, or a state of nothing done. Raises what the store raises."""
    try:
        return Status(**json.loads(store.read(STATUS_NAME)))
    except ObjectNotFoundError:
        return Status()


class StatusWriter(threading.Thread):
    """Writes a run's status while it changes."""

    def __init__(self, store: Store, current: Callable[[], Status]) -> None:
        super().__init__(name="relay-status", daemon=True)
        self._store = store
        self._current = current
        self._ended = threading.Event()

    def run(self) -> None:
        """Write until ended."""
        written: Status | None = None
        while not self._ended.wait(STATUS_SECS):
            status = self._current()
            if status == written:
                continue
            values = dataclasses.asdict(dataclasses.replace(status, time=time.time()))
            try:
                self._store.write(STATUS_NAME, json.dumps(values).encode())
                written = status
            except (RelayError, OSError, ValueError):
                pass  # a report only: training must not suffer from it

    def end(self) -> None:
        """Stop writing."""
        self._ended.set()
