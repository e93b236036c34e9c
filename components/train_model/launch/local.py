"""The local launcher: a TFJob's contract on one machine, one supervisor process a worker."""

import http.client
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

from components.contracts.checkpoint import committed_steps
from components.contracts.errors import (
    ERROR_FILE_VARIABLE,
    EXIT_FENCED,
    EXIT_OK,
    PermanentError,
    TerminatedError,
    error_for,
    is_retryable,
    read_error_file,
    reserve_error_file,
)
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import TOKEN_VARIABLE
from components.train_model.worker.cluster import PEERS_VARIABLE
from components.train_model.worker.server import listen

log = logging.getLogger("relay.launcher")

_TICK_SECS = 0.1
_RESTART_DELAY_SECS = 0.5
# Lives of one supervisor, beside the restarts that the workers themselves count.
_MAX_LIVES = 20
_PROBE_SECS = 1.0
# After one worker has failed for good, the others get this long to write their last lines.
_LINGER_SECS = 2.0


def launch_local(options: TrainOptions, run_uri: str) -> None:
    """Train with `options.workers` supervisors on this machine; returns when all have ended with 0.

    Restarts a supervisor that ends with a retryable code or by a signal, as the operator would.
    Must be called from the main thread. Leaves no process behind, however it ends.

    Raises:
        RelayError: a worker failed for good, with its message and exit code.
        PermanentError: another launch has taken the run over.
        TerminatedError: this process got SIGTERM or SIGINT; the workers have committed their state.
    """
    folder = Path(tempfile.mkdtemp(prefix="relay-train-"))
    job = _LocalJob(options, run_uri, folder)
    previous = {
        number: signal.signal(number, job.on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        job.run()
    finally:
        job.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


class _LocalJob:
    def __init__(self, options: TrainOptions, run_uri: str, folder: Path) -> None:
        self._options = options
        self._run_uri = run_uri
        self._folder = folder
        self._token = secrets.token_hex(16)
        # Held open here, so that a restarted supervisor finds its port and its peers' requests.
        self._sockets = [listen("127.0.0.1", 0) for _ in range(options.workers)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * options.workers
        self._lives = [0] * options.workers
        self._due = [0.0] * options.workers
        self._done: set[int] = set()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._store = open_store(run_uri)
        self._newest = -1

    def run(self) -> None:
        for worker in range(self._options.workers):
            threading.Thread(target=self._probe, args=(worker,), daemon=True).start()
        while len(self._done) < self._options.workers:
            if self._stopping.is_set():
                self._terminate()
            for worker in range(self._options.workers):
                self._look_after(worker)
            self._stopping.wait(_TICK_SECS)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()

    def kill(self) -> None:
        self._ended.set()
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()
        for listening in self._sockets:
            listening.close()

    def _look_after(self, worker: int) -> None:
        process = self._processes[worker]
        if worker in self._done:
            return
        if process is None:
            if time.monotonic() >= self._due[worker]:
                self._processes[worker] = self._start(worker)
            return
        code = process.poll()
        if code is None:
            return
        self._processes[worker] = None
        if code == EXIT_OK:
            self._done.add(worker)
        elif code == EXIT_FENCED:
            # Not retryable: the two launches would take the run from each other for ever.
            raise PermanentError(
                f"{self._message(worker, code)}. Another launch has taken this run over: follow "
                "that one, or stop it and start this one again"
            )
        elif not is_retryable(code):
            time.sleep(_LINGER_SECS)
            raise error_for(code, self._message(worker, code))
        elif self._lives[worker] >= _MAX_LIVES and not self._has_progressed():
            raise PermanentError(
                f"worker {worker} ended {self._lives[worker]} times, the last time with exit code "
                f"{code}: {self._message(worker, code)}"
            )
        else:
            log.warning("worker %d ended (exit code %d): it is started again", worker, code)
            self._due[worker] = time.monotonic() + _RESTART_DELAY_SECS

    def _has_progressed(self) -> bool:
        """Whether a step was committed since this was asked last; refills the budget of lives."""
        newest = max(committed_steps(self._store), default=-1)
        if newest <= self._newest:
            return False
        self._newest = newest
        self._lives = [0] * self._options.workers
        return True

    def _probe(self, worker: int) -> None:
        """Kill a supervisor that no longer answers, as the kubelet's liveness probe does."""
        port = self._sockets[worker].getsockname()[1]
        pid, silent_from = 0, 0.0
        while not self._ended.wait(_PROBE_SECS):
            process = self._processes[worker]
            if process is None:
                continue
            now = time.monotonic()
            if process.pid != pid:
                # It has to import before it can answer.
                pid, silent_from = process.pid, now + self._options.limit_of("imports")
            if _is_healthy(port, self._options.heartbeat_secs):
                silent_from = time.monotonic()
            elif time.monotonic() - silent_from > self._options.heartbeat_secs:
                log.warning("the supervisor of worker %d does not answer: it is killed", worker)
                process.kill()
                pid = 0

    def _start(self, worker: int) -> "subprocess.Popen[bytes]":
        self._lives[worker] += 1
        reserve_error_file(self._error_file(worker))
        descriptor = self._sockets[worker].fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "components.train_model.worker"],
            stdin=subprocess.DEVNULL,
            env=self._environment(worker) | {"RELAY_LISTEN_FD": str(descriptor)},
            pass_fds=[descriptor],
        )

    def _environment(self, worker: int) -> dict[str, str]:
        supervisors = [f"127.0.0.1:{listening.getsockname()[1]}" for listening in self._sockets]
        trainers = ["127.0.0.1:0"] * self._options.workers
        threads = max(1, (os.cpu_count() or 1) // self._options.workers)
        environment = {
            **os.environ,
            "RELAY_OPTIONS": self._options.to_json(),
            "RELAY_RUN_URI": self._run_uri,
            "RELAY_WORKER_DIR": str(self._folder / f"worker-{worker}"),
            "RELAY_DIE_WITH_PARENT": "1",
            TOKEN_VARIABLE: self._token,
            PEERS_VARIABLE: json.dumps(supervisors),
            ERROR_FILE_VARIABLE: str(self._error_file(worker)),
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
        if self._options.workers > 1:
            task = {"type": "worker", "index": worker}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": trainers}, "task": task})
        return environment

    def _error_file(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}.error"

    def _message(self, worker: int, code: int) -> str:
        text = read_error_file(self._error_file(worker))
        return f"worker {worker}: {text or f'exit code {code}, no message; look at its log'}"

    def _terminate(self) -> None:
        """Pass SIGTERM on, wait for the last checkpoint, and leave."""
        running = [process for process in self._processes if process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + self._options.termination_secs + 5
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("a worker did not end in time after SIGTERM: it is killed")
        raise TerminatedError("training was told to stop; its newest checkpoint is committed")


def _is_healthy(port: int, timeout: float) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
