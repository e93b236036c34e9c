"""Retries with jittered back-off inside an overall deadline, around operations that may stall."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from components.storage.errors import StoreUnavailableError

Result = TypeVar("Result")

FIRST_DELAY_SECS = 0.2
MAX_DELAY_SECS = 10.0


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long an operation on a remote store may take.

    Attributes:
        total_secs: over all attempts of a small operation.
        attempt_secs: one attempt of a small operation.
        secs_per_mb: added to both for each megabyte moved: the slowest rate that is put up with.
    """

    total_secs: float = 120.0
    attempt_secs: float = 30.0
    secs_per_mb: float = 1.0

    def for_bytes(self, size: int) -> "Deadlines":
        """The deadlines of an operation that moves `size` bytes."""
        extra = size / 1e6 * self.secs_per_mb
        return Deadlines(
            total_secs=self.total_secs + extra,
            attempt_secs=self.attempt_secs + extra,
            secs_per_mb=self.secs_per_mb,
        )


class TransientError(Exception):
    """An attempt failed in a way that another one may not."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _StalledError(TransientError):
    """An attempt did not end within its limit."""


def retried(
    attempt: Callable[[int], Result], *, what: str, uri: str, deadlines: Deadlines
) -> Result:
    """Call `attempt(number)`, from 0, until it succeeds, fails for good, or time is up.

    Args:
        attempt: raises TransientError for what another attempt may not meet.
        what: the operation, for the error ("read", "upload of 12.3 MB").
        uri: of the object, for the error.
        deadlines: an attempt that takes longer is given up; it goes on in a daemon thread, and
            what it does later changes nothing here.

    Raises:
        StoreUnavailableError: no attempt succeeded in time; says how many there were and the last
            one's trouble.
    """
    began = time.monotonic()
    number = 0
    while True:
        left = deadlines.total_secs - (time.monotonic() - began)
        try:
            return _limited(attempt, number, min(deadlines.attempt_secs, max(left, 0.01)))
        except TransientError as error:
            number += 1
            delay = _delay(number, error.retry_after)
            spent = time.monotonic() - began
            if spent + delay >= deadlines.total_secs:
                raise StoreUnavailableError(
                    f"{uri}: {what} did not succeed in {spent:.1f} s and {number} attempts "
                    f"(deadline {deadlines.total_secs:.0f} s); the last one: {error}"
                ) from error
            time.sleep(delay)


def _delay(number: int, retry_after: float) -> float:
    backoff = min(FIRST_DELAY_SECS * 2.0 ** (number - 1), MAX_DELAY_SECS)
    return max(backoff * random.uniform(0.5, 1.5), retry_after)  # noqa: S311 - jitter, no secret


def _limited(attempt: Callable[[int], Result], number: int, limit: float) -> Result:
    """Run one attempt in a daemon thread: a peer that drips bytes beats every socket timeout."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((attempt(number), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="storage", daemon=True)
    thread.start()
    thread.join(limit)
    if not outcome:
        raise _StalledError(f"no answer within {limit:.1f} s")
    result, error = outcome[0]
    if error is None:
        return result  # type: ignore[no-any-return]
    raise error
