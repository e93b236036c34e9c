"""Errors by what the caller does next, and the exit codes that carry them between processes.

Agreed between every step, the runner, the supervisor and the launchers. The Training Operator calls
1-127 permanent and 128-255 retryable; the numbers here respect that.
"""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

EXIT_OK = 0
EXIT_BAD_INPUT = 64
EXIT_PERMANENT = 70
EXIT_TERMINATED = 143
EXIT_RETRYABLE = 200
EXIT_STALLED = 201
EXIT_FENCED = 202

# Where a process that was started by the runner or a supervisor leaves the one message a person
# must read.
ERROR_FILE_VARIABLE = "RELAY_ERROR_FILE"
_MESSAGE_BYTES = 4096


class RelayError(Exception):
    """A failure explained by its message: what was received and expected, where, how to fix it."""

    exit_code: int = EXIT_PERMANENT


class InputError(RelayError):
    """What was given can never work: fix the input, then start again. Never retried."""

    exit_code = EXIT_BAD_INPUT


class PermanentError(RelayError):
    """Repeating will not help: user code failed, a budget is spent, the disk is full."""

    exit_code = EXIT_PERMANENT


class RetryableError(RelayError):
    """Transient trouble: the same work, started again, may well succeed."""

    exit_code = EXIT_RETRYABLE


class StalledError(RetryableError):
    """No progress within the limit of a phase."""

    exit_code = EXIT_STALLED


class FencedError(RetryableError):
    """A newer incarnation of the same work exists; this one must not commit anything."""

    exit_code = EXIT_FENCED


class TerminatedError(RelayError):
    """Ended by SIGTERM with its state committed."""

    exit_code = EXIT_TERMINATED


def error_for(exit_code: int, message: str) -> RelayError:
    """The error that a process which ended with `exit_code` and `message` stands for."""
    kinds = (InputError, RetryableError, StalledError, FencedError, TerminatedError)
    kind = next((kind for kind in kinds if kind.exit_code == exit_code), PermanentError)
    error = kind(message)
    error.exit_code = exit_code
    return error


def is_retryable(exit_code: int) -> bool:
    """Whether a process that ended so (negative: killed by that signal) is worth starting again."""
    return exit_code < 0 or exit_code >= 128


def as_relay_error(error: BaseException) -> RelayError | None:
    """Return the explained form of `error`, or None if it is a fault of ours or of user code."""
    if isinstance(error, RelayError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        # A failed write knows no name; most of what is written on the way is temporary.
        place = (
            error.filename
            or f"temporary files ({os.environ.get('TMPDIR') or tempfile.gettempdir()})"
        )
        return PermanentError(
            f"no space left on the device that holds {place}. Nothing was committed. "
            "Free space there, or name a workspace, cache or storage_root on a larger disk, and "
            "start again"
        )
    if isinstance(error, PermissionError) and error.filename:
        return InputError(
            f"permission denied: {error.filename}. Give user id {os.geteuid()} access to it"
        )
    return None


def report(error: BaseException) -> int:
    """Print the one message for `error`, leave it in the error file, and return the exit code."""
    known = as_relay_error(error)
    if known is None:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}"
        code = EXIT_PERMANENT
    else:
        message, code = str(known), known.exit_code
    print(f"error: {message}", file=sys.stderr, flush=True)
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if path:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(message)
        except OSError as failure:  # a full disk must not hide the error itself
            print(
                f"warning: the message could not be written to {path}: {failure}", file=sys.stderr
            )
    return code


def reserve_error_file(path: Path) -> None:
    """Make an error file with room for a message, so that a full disk takes one too."""
    try:
        path.write_bytes(b"\0" * _MESSAGE_BYTES)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write knows no name of its own
        raise


def read_error_file(path: Path) -> str:
    """The message in an error file, "" if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip("\0")
    except OSError:
        return ""


def run_main(main: Callable[[], int | None]) -> int:
    """Run a step's main function and map what it raises to a message and an exit code."""
    try:
        return main() or EXIT_OK
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return EXIT_TERMINATED
    except Exception as error:
        return report(error)
