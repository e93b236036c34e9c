"""A training run as a real process tree, to look at and to disturb."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from components.contracts.checkpoint import committed_steps, load_newest
from components.contracts.training_run import read_completion, read_run
from components.storage.open import open_store
from components.train_model.worker.heartbeat import Heartbeat

ROOT = Path(__file__).resolve().parents[2]
START_SECS = 180


class TrainingProcess:
    """`python -m components.train_model` on two workers, its output kept in a file."""

    def __init__(
        self,
        folder,
        dataset_uri,
        *,
        module="tests.train_model.small_model",
        environment=None,
        prefix=(),
        **options,
    ):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_uri = options.get("output_uri") or str(self.folder / "run")
        self.log_path = self.folder / "log"
        self.error_path = self.folder / "error"
        values = {
            "dataset_uri": dataset_uri,
            "model_module": module,
            "batch_size": 48,
            "epochs": 30,
            "checkpoint_steps": 20,
            "validation_split": "",
            "output_uri": self.run_uri,
            **options,
        }
        flags = [
            f"--{name.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in values.items()
        ]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "components.train_model", *flags],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "RELAY_ERROR_FILE": str(self.error_path),
                    "RELAY_LOG_FORMAT": "human",
                    **(environment or {}),
                },
            )

    @property
    def log(self):
        return self.log_path.read_text()

    @property
    def message(self):
        return self.error_path.read_text() if self.error_path.exists() else ""

    @property
    def store(self):
        return open_store(self.run_uri)

    @property
    def completion(self):
        return read_completion(self.store)

    def supervisor(self, worker):
        """Process id of a worker's supervisor."""
        for pid in children(self.process.pid):
            if f"worker-{worker}" in environment(pid).get("RELAY_WORKER_DIR", ""):
                return pid
        return None

    def trainers(self, worker):
        """Process ids of a worker's trainer and its spare, oldest first."""
        supervisor = self.supervisor(worker)
        return children(supervisor) if supervisor else []

    def beat(self, worker):
        """What a worker's trainer has last recorded, None while there is none."""
        for pid in self.trainers(worker):
            path = environment(pid).get("RELAY_HEARTBEAT")
            if path:
                with contextlib.suppress(OSError):
                    beat = Heartbeat(Path(path)).read()
                    if beat.phase not in ("imports", "waiting"):
                        return beat
        return None

    def wait_for_phase(self, worker, phase, *, after=-1, pause=0.001):
        """Wait until a worker's trainer is in a phase, `after` so many steps."""

        def reached():
            beat = self.beat(worker)
            return beat is not None and beat.phase == phase and beat.step >= after

        self.wait_until(reached, pause=pause)

    def wait_for_step(self, step):
        """Wait until a checkpoint of `step` or later is committed."""
        self.wait_until(lambda: max(committed_steps(self.store), default=-1) >= step)

    def wait_for_log(self, text):
        self.wait_until(lambda: text in self.log)

    def wait_until(self, condition, limit=START_SECS, pause=0.02):
        deadline = time.monotonic() + limit
        while not condition():
            assert self.process.poll() is None, f"training has ended early:\n{self.log}"
            assert time.monotonic() < deadline, f"waited {limit} s in vain:\n{self.log}"
            time.sleep(pause)

    def finish(self, limit=240):
        """Exit code of the launcher once it has ended by itself."""
        return self.process.wait(limit)

    @property
    def wall_secs(self):
        """From the first start of the run to its completion."""
        end = Path(self.run_uri, "complete.json").stat().st_mtime
        return end - read_run(self.store).created

    def arrays(self):
        """Arrays of the newest checkpoint."""
        return load_newest(self.store)[1]

    def close(self):
        """Kill what is left, and make sure that nothing outlives the launcher."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        deadline = time.monotonic() + 10
        while left := self.leftovers():
            assert time.monotonic() < deadline, f"processes outlive the launcher: {left}"
            time.sleep(0.05)

    def leftovers(self):
        """Processes of this run, wherever they hang in the process tree."""
        own = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                variables = environment(int(entry.name))
                if variables.get("RELAY_RUN_URI") == self.run_uri:
                    own.append(int(entry.name))
        return own


def children(pid):
    """Process ids of the direct children of a process, oldest first."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        found = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return sorted(int(child) for child in found)


def environment(pid):
    """Environment of a process, empty if it is gone."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in data.split("\0") if entry)
