"""Supervisors started one by one, without a launcher, as pods are."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time

from components.contracts.training_run import TrainingRun, to_json_bytes
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import TOKEN_VARIABLE
from tests.servers.object_stores import free_port
from tests.train_model.running import ROOT, TrainingProcess


class Workers(TrainingProcess):
    """The supervisors of one job; `start` starts or restarts one."""

    def __init__(
        self,
        folder,
        dataset_uri,
        *,
        run_uri=None,
        module="tests.train_model.small_model",
        namespaces=(),
        **options,
    ):
        """`namespaces`: (network namespace, address) of each worker, none for loopback."""
        self.namespaces = namespaces
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_uri = run_uri or str(folder / "run")
        self.options = TrainOptions(
            dataset_uri=dataset_uri,
            model_module=module,
            **{
                "batch_size": 48,
                "epochs": 30,
                "checkpoint_steps": 20,
                "validation_split": "",
                **options,
            },
        )
        self.ports = [free_port() for _ in range(self.options.workers)]
        self.token = secrets.token_hex(8)
        self.processes = {}
        run = TrainingRun(
            model_module=self.options.model_module,
            hyperparameters=dict(self.options.hyperparameters),
            dataset_uri=dataset_uri,
            dataset_fingerprint="",
            fingerprint="by-hand",
            created=time.time(),
        )
        if run_uri is None:
            open_store(self.run_uri).create("run.json", to_json_bytes(run))

    def start(self, worker):
        """Start a worker's supervisor; returns its process."""
        hosts = [address for _, address in self.namespaces]
        hosts = hosts or ["127.0.0.1"] * self.options.workers
        # Port 0: on one machine each trainer gets a free one.
        trainers = [f"{host}:{2222 if self.namespaces else 0}" for host in hosts]
        supervisors = [f"{host}:{port}" for host, port in zip(hosts, self.ports, strict=True)]
        task = {"type": "worker", "index": worker}
        environment = {
            **os.environ,
            "RELAY_OPTIONS": self.options.to_json(),
            "RELAY_RUN_URI": self.run_uri,
            "RELAY_WORKER_DIR": str(self.folder / f"worker-{worker}"),
            "RELAY_SUPERVISORS": json.dumps(supervisors),
            "RELAY_ERROR_FILE": str(self.folder / f"error-{worker}"),
            "RELAY_LOG_FORMAT": "human",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_CONFIG": json.dumps({"cluster": {"worker": trainers}, "task": task}),
            TOKEN_VARIABLE: self.token,
        }
        with (self.folder / f"log-{worker}").open("a") as log:
            self.processes[worker] = subprocess.Popen(
                [*self._prefix(worker), sys.executable, "-m", "components.train_model.worker"],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        return self.processes[worker]

    def _prefix(self, worker):
        return ["ip", "netns", "exec", self.namespaces[worker][0]] if self.namespaces else []

    @property
    def log(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def message_of(self, worker):
        path = self.folder / f"error-{worker}"
        return path.read_text() if path.exists() else ""

    def supervisor(self, worker):
        return self.processes[worker].pid

    def wait_until(self, condition, limit=180, pause=0.02):
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit} s in vain:\n{self.log}"
            time.sleep(pause)

    def codes(self, limit=240):
        """Exit codes by worker once all have ended."""
        deadline = time.monotonic() + limit
        return [
            self.processes[worker].wait(max(0.1, deadline - time.monotonic()))
            for worker in sorted(self.processes)
        ]

    def signal_all(self, number):
        """Send a signal to every process of the job, trainers first or last as it must be."""
        pids = [pid for worker in self.processes for pid in self.trainers(worker)]
        pids += [process.pid for process in self.processes.values()]
        for pid in pids if number == signal.SIGSTOP else reversed(pids):
            os.kill(pid, number)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
