"""A cluster played by the test, and a launcher in this process with short pauses."""

import contextlib
import dataclasses
import json
import threading
import time

import pytest
from kubernetes import client as k8s
from kubernetes import config as k8s_config

from components.contracts.job_names import job_name
from components.contracts.training_run import COMPLETE_NAME, Completion, TrainingRun, to_json_bytes
from components.storage.open import open_store
from components.train_model.launch import api, decision, follow, kubernetes
from components.train_model.launch.options import KubernetesOptions
from components.train_model.launch.tfjob import JobIdentity
from components.train_model.options import TrainOptions
from components.train_model.worker.status import STATUS_NAME, Status
from tests.servers.kubernetes_api import NAMESPACE, container, kubernetes_api

FAST = {
    api: {"_FIRST_DELAY_SECS": 0.01, "_MAX_DELAY_SECS": 0.05, "_UNAUTHORIZED_SECS": 0.2},
    kubernetes: {"_LOOK_SECS": 0.05, "_MIN_PAUSE_SECS": 0.01, "_WATCH_PAUSE_SECS": 0.05},
    decision: {"_OPERATOR_SECS": 0.2, "FINISH_SECS": 0.4},
    follow: {"_PAUSE_SECS": 0.05},
}
OPTIONS = TrainOptions(dataset_uri="gs://b/d", model_module="m", workers=2, launcher="kubernetes")
PLACE = KubernetesOptions(image="relay:1", pending_secs=20, stall_secs=20, lost_node_secs=1)


class Killed(BaseException):
    """The launcher's process has ended, as by SIGKILL."""


@dataclasses.dataclass
class World:
    """A cluster, a store, and the launchers that look after one run there."""

    cluster: object
    config: object
    uri: str
    place: KubernetesOptions = PLACE
    outcome: object = None
    launcher: object = None
    thread: threading.Thread | None = None

    @property
    def store(self):
        return open_store(self.uri)

    @property
    def name(self):
        return job_name(self.uri)

    def start(self):
        """Start a launcher in a thread."""
        client = k8s_config.new_client_from_config(str(self.config))
        client.configuration.retries = False
        connection = _Mortal(client, NAMESPACE, deadline_secs=20)
        run = TrainingRun(
            model_module="m",
            hyperparameters={},
            dataset_uri="gs://b/d",
            dataset_fingerprint="d",
            fingerprint="f",
            created=time.time(),
        )
        identity = JobIdentity(
            name=self.name,
            namespace=NAMESPACE,
            run="run",
            run_uri=self.uri,
            fingerprint="f",
            token="t",
        )
        self.launcher = kubernetes.Launcher(connection, OPTIONS, self.place, run, identity)
        self.outcome = None
        self.thread = threading.Thread(target=self._run, args=(self.launcher,), daemon=True)
        self.thread.start()

    def _run(self, launcher):
        try:
            launcher.run()
            outcome = "complete"
        except (Exception, Killed) as error:
            outcome = error
        if launcher is self.launcher:
            self.outcome = outcome

    def kill(self):
        """End the launcher between two of its calls, without a word."""
        old, self.launcher = self.launcher, None
        for connection in (old._api, old._stop_api, old._logs._api):
            connection.killed = True
        self.thread.join(10)
        assert not self.thread.is_alive()

    def finish(self, timeout=20):
        """Wait for the launcher's end; what became of it."""
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"the launcher hangs; seen {self.cluster.requests[-20:]}"
        return self.outcome

    def wait_for_job(self, timeout=10):
        self.wait_until(lambda: self.cluster.jobs, timeout)
        for worker in range(OPTIONS.workers):
            self.cluster.make_pod(self.name, worker)

    @staticmethod
    def wait_until(condition, timeout=10):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def report(self, **fields):
        values = dataclasses.asdict(Status(**fields))
        self.store.write(STATUS_NAME, json.dumps(values).encode())

    def complete(self):
        """What the workers do at the end of the run."""
        with contextlib.suppress(Exception):
            self.store.create(
                COMPLETE_NAME,
                to_json_bytes(
                    Completion(
                        step=10,
                        num_epochs=1,
                        reason="all steps done",
                        num_workers=2,
                        num_restarts=0,
                        goodput={},
                    )
                ),
            )
        for worker in range(OPTIONS.workers):
            self.end_worker(worker, 0)
        self.cluster.set_condition(self.name, "Succeeded")

    def end_worker(self, worker, code, message="", reason="Error"):
        ended = {"exitCode": code, "reason": reason, "message": message}
        phase = "Failed" if code else "Succeeded"
        self.cluster.set_status(self.name, worker, container({"terminated": ended}, phase))


class _Mortal(api.ClusterApi):
    """An API whose caller can be killed between two calls."""

    killed = False

    def _call(self, action, what):
        if self.killed:
            raise Killed
        answer = super()._call(action, what)
        if self.killed:
            raise Killed
        return answer

    def again(self, *, deadline_secs, stopped=None):
        client = k8s.ApiClient(self._client.configuration)
        return _Mortal(client, self.namespace, deadline_secs=deadline_secs, stopped=stopped)


@pytest.fixture(scope="session")
def fast():
    """Short pauses, for a cluster that answers at once."""
    with pytest.MonkeyPatch.context() as patch:
        for module, values in FAST.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield


@pytest.fixture
def world(tmp_path, fast):
    with kubernetes_api(tmp_path) as (cluster, config):
        made = World(cluster, config, (tmp_path / "run").as_uri())
        yield made
        if made.thread is not None and made.thread.is_alive():
            made.kill()
