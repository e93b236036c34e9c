"""The launcher's lease on a run: workers that no launcher has looked after for long end themselves.

So nothing leaks even when every request to delete the job was refused or lost; the workers need no
rights in the cluster for it. Only changes of the lease object count, by the reader's own clock.
"""

import json
import os
import threading
import time
from collections.abc import Callable

from components.contracts.errors import RelayError
from components.storage.base import Store
from components.storage.errors import ObjectNotFoundError

LEASE_VARIABLE = "RELAY_LEASE_SECS"
LEASE_NAME = "lease.json"
# How the message of a worker that ended for this reason begins; a later launcher starts it anew.
LEASE_MESSAGE = "the launcher's lease ran out"


class LeaseHolder(threading.Thread):
    """Renews the lease of a run, several times in its period, until `release`."""

    def __init__(self, store: Store, lease_secs: float) -> None:
        super().__init__(name="relay-lease", daemon=True)
        self._store = store
        self._period = lease_secs / 6
        self._released = threading.Event()

    def run(self) -> None:
        """Renew until released."""
        count = 0
        while not self._released.is_set():
            count += 1
            record = {"launcher": os.getpid(), "renewal": count, "time": time.time()}
            try:
                self._store.write(LEASE_NAME, json.dumps(record).encode())
            except (RelayError, OSError):
                pass  # storage may be away; the workers, too, count only what they could read
            self._released.wait(self._period)

    def release(self) -> None:
        """Stop renewing."""
        self._released.set()


class LeaseWatch(threading.Thread):
    """Calls `lost(message)` once, when the lease has not changed for `lease_secs`."""

    def __init__(self, store: Store, lease_secs: float, lost: Callable[[str], None]) -> None:
        super().__init__(name="relay-lease-watch", daemon=True)
        self._store = store
        self._secs = lease_secs
        self._lost = lost
        self._ended = threading.Event()

    def run(self) -> None:
        """Watch until ended or lost."""
        seen, since = b"", time.monotonic()
        while not self._ended.wait(self._secs / 12):
            try:
                found = self._store.read(LEASE_NAME)
            except ObjectNotFoundError:
                found = b""
            except (RelayError, OSError):
                # Unreadable is not unrenewed: while storage is away nobody could know.
                since = time.monotonic()
                continue
            if found != seen:
                seen, since = found, time.monotonic()
            elif time.monotonic() - since > self._secs:
                self._lost(
                    f"{LEASE_MESSAGE}: nobody renewed {self._store.uri_of(LEASE_NAME)} for "
                    f"{self._secs:.0f} s (lease_secs). The state is committed: start the step "
                    "again to go on"
                )
                return

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
