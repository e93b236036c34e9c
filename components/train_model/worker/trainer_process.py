"""A supervisor's handle on one trainer process: start, assign, look at, dump, kill."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from components.contracts.errors import (
    ERROR_FILE_VARIABLE,
    read_error_file,
    reserve_error_file,
)
from components.train_model.worker.assignment import HEARTBEAT_VARIABLE, Assignment
from components.train_model.worker.heartbeat import Beat, Heartbeat

_DUMP_SECS = 1.0


class TrainerProcess:
    """A trainer, from its first import to its end; idle until it is assigned."""

    def __init__(self, folder: Path, name: str, variables: Mapping[str, str]) -> None:
        """Start it.

        Args:
            folder: gets its heartbeat and error files.
            name: of those files.
            variables: of its environment, beside this process's own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._error_file = folder / f"{name}.error"
        reserve_error_file(self._error_file)
        heartbeat_file = folder / f"{name}.heartbeat"
        self.heartbeat = Heartbeat(heartbeat_file, create=True)
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "components.train_model.worker.trainer"],
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                **variables,
                HEARTBEAT_VARIABLE: str(heartbeat_file),
                ERROR_FILE_VARIABLE: str(self._error_file),
            },
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def assign(self, assignment: Assignment) -> None:
        """Tell it what to do. A process that has died meanwhile shows in `exit_code`."""
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(assignment.to_line().encode())
            self._process.stdin.close()

    def exit_code(self) -> int | None:
        """None while it lives; negative: ended by that signal."""
        return self._process.poll()

    def beat(self) -> Beat:
        """Its state as last recorded."""
        return self.heartbeat.read()

    def message(self) -> str:
        """The one message it left, empty if none."""
        return read_error_file(self._error_file)

    def dump_stacks(self) -> None:
        """Have it write the stacks of all its threads to the log; works while the GIL is held."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(_DUMP_SECS)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
