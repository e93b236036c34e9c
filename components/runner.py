"""The first ring of retries: what a component's body calls to run its step.

The step runs as a child process, `python -m components.<step>`, is started again after a retryable
end, and gets the SIGTERM that this process gets. No retry policy of the platform is relied on: a
stock Kubeflow Pipelines 2.17 does not run failing code again.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.contracts.command_line import command_line
from components.contracts.errors import (
    ERROR_FILE_VARIABLE,
    EXIT_BAD_INPUT,
    EXIT_OK,
    EXIT_PERMANENT,
    EXIT_TERMINATED,
    RelayError,
    is_retryable,
)
from components.contracts.job_names import RUN_VARIABLE, run_label
from components.placement import Placement, place
from components.storage.open import open_store

# A file that gets one JSON object a line for everything a person may want to follow.
EVENTS_VARIABLE = "RELAY_EVENTS"
# A file whose change of content means that the step has committed something new.
PROGRESS_VARIABLE = "RELAY_PROGRESS_FILE"

# Under a run's uri: one record a task, read by the run's summary.
RECORDS_FOLDER = "relay-steps"

# What TensorFlow's C++ side prints before it can be told not to, on machines without a GPU.
_NOISE = re.compile(
    r"^(WARNING: All log messages before absl"
    r"|[IWE]\d{4} [\d:.]+ +\d+ (cuda|port|cpu_feature|computation))"
)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a step is started again.

    Attributes:
        max_restarts: in a row without progress.
        first_delay_secs: before the first restart; doubles with each, with jitter.
        max_delay_secs: at most.
    """

    max_restarts: int = 4
    first_delay_secs: float = 1.0
    max_delay_secs: float = 60.0


def run_step(
    step: str, values: Mapping[str, Any], *, policy: RetryPolicy | None = None
) -> dict[str, Any]:
    """Run a step to its end and return what its `--result` file says.

    Args:
        step: folder name under components/.
        values: option name to value.
        policy: of restarts.

    Raises:
        SystemExit: the step failed for good, or was told to stop; with the step's exit code. Its
            one message has been printed.
    """
    with tempfile.TemporaryDirectory(prefix=f"relay-{step}-") as folder:
        runner = _Runner(step, values, policy or RetryPolicy(), Path(folder))
        previous = signal.signal(signal.SIGTERM, runner.on_sigterm)
        try:
            return runner.run()
        finally:
            signal.signal(signal.SIGTERM, previous)


def run_component(
    step: str,
    values: Mapping[str, Any],
    *,
    artifact_uri: str,
    storage_root: str,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a component's step and leave a record of it for the run's summary.

    Args:
        step: folder name under components/.
        values: option name to value; `{data_uri}` and `{shared_uri}` in a text stand for the places
            that `components.placement` gives.
        artifact_uri: of the component's output artifact.
        storage_root: where data-sized outputs go, empty for the artifact's own place.
        options: further options by name; they must not repeat one of `values`.

    Returns:
        The step's result.
    """
    repeated = sorted(set(values) & set(options or {}))
    if repeated:
        print(
            f"error: option {repeated[0]!r} of {step} has a parameter of its own", file=sys.stderr
        )
        raise SystemExit(EXIT_BAD_INPUT)
    placement = place(artifact_uri, storage_root)
    places = {"data_uri": placement.data_uri, "shared_uri": placement.shared_uri}
    filled = {
        name: value.format(**places) if value in ("{data_uri}", "{shared_uri}") else value
        for name, value in {**values, **(options or {})}.items()
    }
    began = time.monotonic()
    record: dict[str, Any] = {"step": step, "task": placement.task}
    os.environ.setdefault(RUN_VARIABLE, run_label(placement.run))
    try:
        result = run_step(step, filled)
        record["result"] = result
        return result
    except SystemExit as end:
        record["exit_code"] = end.code
        raise
    finally:
        record["seconds"] = round(time.monotonic() - began, 3)
        _keep_record(placement, record)


def run_training(
    values: Mapping[str, Any],
    *,
    image: str,
    task_config: Mapping[str, Any],
    artifact_uri: str,
    storage_root: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the training step; on a cluster with what the task says about its pods.

    Args:
        values: as for run_component.
        image: of the workers.
        task_config: fragments of a pod by name, as kfp.dsl.TaskConfig has them; None where unset.
        artifact_uri: as for run_component.
        storage_root: as for run_component.
        options: further options of the step; what `options["kubernetes"]` says goes before the
            task's settings.

    Returns:
        The step's result.
    """
    extended = dict(options)
    if values["launcher"] == "kubernetes":
        given = {name: value for name, value in task_config.items() if value}
        extended["kubernetes"] = {"image": image, **given, **options.get("kubernetes", {})}
    return run_component(
        "train_model",
        values,
        artifact_uri=artifact_uri,
        storage_root=storage_root,
        options=extended,
    )


def _keep_record(placement: Placement, record: Mapping[str, Any]) -> None:
    name = f"{RECORDS_FOLDER}/{placement.task}.json"
    try:
        open_store(placement.run_uri).write(name, json.dumps(record).encode())
    except (RelayError, OSError) as error:  # the record must not fail a step that has succeeded
        print(f"warning: the record of {placement.task} was not kept: {error}", file=sys.stderr)


def command_of(step: str, values: Mapping[str, Any]) -> list[str]:
    """The command line that runs a step."""
    return [sys.executable, "-m", f"components.{step}", *command_line(values)]


class _Runner:
    def __init__(
        self, step: str, values: Mapping[str, Any], policy: RetryPolicy, folder: Path
    ) -> None:
        self._step = step
        self._policy = policy
        self._result = folder / "result.json"
        self._error = folder / "error"
        self._progress = folder / "progress"
        self._command = command_of(step, {**values, "result": str(self._result)})
        self._child: subprocess.Popen[str] | None = None
        self._terminated = False
        self._last_error = ""

    def run(self) -> dict[str, Any]:
        restarts, killed, began = 0, 0, time.monotonic()
        self._emit("started", pid=os.getpid())
        while True:
            progress = self._content_of(self._progress)
            code = self._attempt()
            if code == EXIT_OK:
                self._emit("finished", seconds=round(time.monotonic() - began, 3))
                return dict(json.loads(self._result.read_text(encoding="utf-8")))
            if self._content_of(self._progress) != progress:
                restarts = killed = 0
            killed += code == -signal.SIGKILL
            if self._terminated or not is_retryable(code):
                self._fail(code)
            if killed > 1:
                self._fail(EXIT_PERMANENT, self._out_of_memory())
            if restarts >= self._policy.max_restarts:
                self._fail(EXIT_PERMANENT, f"{self._message(code)} ({restarts + 1} attempts)")
            restarts += 1
            self._wait(restarts, code)

    def on_sigterm(self, number: int, frame: Any) -> None:
        self._terminated = True
        if self._child is not None:
            self._child.terminate()

    def _attempt(self) -> int:
        self._error.unlink(missing_ok=True)
        self._last_error = ""
        if self._terminated:
            return EXIT_TERMINATED
        environment = {
            **os.environ,
            ERROR_FILE_VARIABLE: str(self._error),
            PROGRESS_VARIABLE: str(self._progress),
            "PYTHONUNBUFFERED": "1",
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        if self._terminated:  # the signal came while the child was being started
            self._child.terminate()
        assert self._child.stdout is not None  # noqa: S101 - asked for above
        with self._child.stdout as lines:
            for line in lines:
                if line.startswith("error: "):
                    self._last_error = line.removeprefix("error: ").rstrip("\n")
                if not _NOISE.match(line):
                    print(line, end="", flush=True)
                    self._emit("log", line=line.rstrip("\n"))
        return self._child.wait()

    def _wait(self, restarts: int, code: int) -> None:
        delay = self._policy.first_delay_secs * 2 ** (restarts - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        delay = min(delay, self._policy.max_delay_secs)
        text = f"{self._step} is started again in {delay:.1f} s: {self._message(code)}"
        print(text, flush=True)
        self._emit("retry", line=text)
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and not self._terminated:
            time.sleep(0.1)

    def _fail(self, code: int, message: str = "") -> None:
        code = code if code > 0 else EXIT_PERMANENT
        self._emit("failed", exit_code=code, message=message or self._message(code))
        if message:
            print(f"error: {message}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_TERMINATED if self._terminated else code)

    def _message(self, code: int) -> str:
        end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        # The file may be missing: a full disk takes no message either.
        message = self._content_of(self._error) or self._last_error
        return message or f"{self._step} ended with {end}, see its log"

    def _out_of_memory(self) -> str:
        return (
            f"{self._step} was killed by SIGKILL twice with no progress in between: likely out of "
            "memory. Give the task more memory, or lower its batch size or number of processes"
        )

    @staticmethod
    def _content_of(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except OSError:
            return ""

    def _emit(self, event: str, **fields: Any) -> None:
        path = os.environ.get(EVENTS_VARIABLE)
        if path:
            record = {"time": time.time(), "step": self._step, "event": event, **fields}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
