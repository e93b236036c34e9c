"""Progress lines at a human pace."""

import logging
import time

INTERVAL_SECS = 5.0

log = logging.getLogger(__name__)


class Progress:
    """Counts rows and logs them now and then."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._num_rows = 0

    def add(self, num_rows: int) -> None:
        """Count rows that were converted."""
        self._num_rows += num_rows
        now = time.monotonic()
        if now - self._last >= INTERVAL_SECS:
            self._last = now
            self._log("converted")

    def finish(self) -> None:
        """Log the total."""
        self._log("converted all:")

    def _log(self, what: str) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        log.info(
            "%s %s rows, %s rows/s", what, f"{self._num_rows:,}", f"{self._num_rows / seconds:,.0f}"
        )
