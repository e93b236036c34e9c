"""The goodput ledger: every second of a run is in exactly one bucket, restarts included."""

import time
from collections.abc import Mapping
from typing import Any, Final

BUCKETS: Final = (
    *("productive", "start_up", "data_wait", "checkpoint_wait", "restore", "lost", "stalled"),
)


class Ledger:
    """Seconds by bucket since the run was first started, by the wall clock.

    A checkpoint carries the ledger of its moment. After a failure the time from that moment to the
    last sign of progress is `lost` (that work is done again), the time from there to the decision
    to start again is `stalled`, and what follows is `start_up` and `restore`.
    """

    def __init__(self, started: float) -> None:
        """`started`: seconds since the epoch."""
        self._seconds = dict.fromkeys(BUCKETS, 0.0)
        self._until = started

    def resume(self, state: Mapping[str, Any], *, last_progress: float, restarted: float) -> None:
        """Go on from a checkpoint's ledger.

        Args:
            state: what `state` returned when the checkpoint was taken.
            last_progress: when the failed incarnation last made a step (epoch seconds, 0 unknown).
            restarted: when the decision to start again was taken.
        """
        self._seconds = dict.fromkeys(BUCKETS, 0.0) | dict(state["seconds"])
        self._until = float(state["until"])
        if last_progress > self._until:
            self.charge("lost", until=last_progress)
        self.charge("stalled", until=max(restarted, self._until))

    def charge(self, bucket: str, *, until: float | None = None) -> float:
        """Put the time since the last charge into `bucket`; returns those seconds."""
        now = time.time() if until is None else until
        seconds = max(0.0, now - self._until)
        self._seconds[bucket] += seconds
        self._until = max(now, self._until)
        return seconds

    def charge_call(self, data_wait: float) -> None:
        """Put the time since the last charge into productive, but `data_wait` seconds of it."""
        seconds = self.charge("productive")
        waited = min(data_wait, seconds)
        self._seconds["productive"] -= waited
        self._seconds["data_wait"] += waited

    def seconds(self) -> dict[str, float]:
        """Seconds by bucket."""
        return {bucket: round(value, 3) for bucket, value in self._seconds.items()}

    def state(self) -> dict[str, Any]:
        """JSON form for a checkpoint."""
        return {"seconds": self.seconds(), "until": self._until}
