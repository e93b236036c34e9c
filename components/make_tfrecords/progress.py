"""Progress lines at a human pace."""

import logging
import time

INTERVAL_SECS = 5.0

log = logging.getLogger(__name__)


class Progress:
    """Counts rows and logs them now and then."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._start = self._last = time.monotonic()
        self._num_rows = 0

    def add(self, num_rows: int) -> None:
        """Count more rows."""
        self.at(self._num_rows + num_rows)

    def at(self, num_rows: int) -> None:
        """Set how many rows there are so far."""
        self._num_rows = num_rows
        if time.monotonic() - self._last >= INTERVAL_SECS:
            self._last = time.monotonic()
            self._log()

    def finish(self) -> None:
        """Log the total, if it took long enough to be of interest."""
        if time.monotonic() - self._start >= 1:
            self._log()

    def _log(self) -> None:
        rate = self._num_rows / max(time.monotonic() - self._start, 1e-9)
        log.info("%s %s rows, %s rows/s", self._verb, f"{self._num_rows:,}", f"{rate:,.0f}")
