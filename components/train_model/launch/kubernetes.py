"""The launcher on a cluster: one TFJob per run, adopted, repaired, and deleted when told to stop.

Level triggered: a watch only wakes it; what to do is decided from a fresh look at the cluster and
at storage (decision.py), so a lost event, a dropped connection or a restart of this process costs a
moment and nothing else.
"""

import contextlib
import datetime
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import urllib3
from kubernetes import client as k8s

from components.contracts.errors import (
    InputError,
    RelayError,
    RetryableError,
    TerminatedError,
    is_retryable,
)
from components.contracts.job_names import RUN_VARIABLE, job_name, run_label
from components.contracts.training_run import TrainingRun, read_completion
from components.storage.base import Store
from components.storage.open import open_store
from components.train_model.launch.api import (
    AlreadyThereError,
    ClusterApi,
    UnreachableError,
    connect,
)
from components.train_model.launch.decision import (
    Create,
    Delete,
    Evict,
    Fail,
    Finish,
    Memory,
    Seen,
    Wait,
    decide,
)
from components.train_model.launch.follow import LogFollower
from components.train_model.launch.options import KubernetesOptions
from components.train_model.launch.tfjob import JobIdentity, build_tfjob
from components.train_model.launch.view import Job, job_of, pods_of
from components.train_model.options import TrainOptions
from components.train_model.worker.lease import LeaseHolder
from components.train_model.worker.status import Status, read_status

log = logging.getLogger("relay.launcher")

# A look at least so often, whether or not the watch reports a change, and at most so often.
_LOOK_SECS = 10.0
_MIN_PAUSE_SECS = 0.5
_WATCH_PAUSE_SECS = 2.0
# A real Kubeflow Pipelines kills the process 0.6 s after SIGTERM: one short try, then more.
_STOP_SECS = 120.0
_DELETED_SECS = 600.0


def launch_on_kubernetes(
    options: TrainOptions, place: KubernetesOptions, run: TrainingRun, run_uri: str
) -> None:
    """Train by a TFJob; returns when the run is complete in storage.

    Must be called from the main thread. Whenever it ends otherwise, the job has been deleted.

    Raises:
        InputError: no cluster, no right, no TFJobs, or a field that the cluster refuses.
        RelayError: training failed for good; the message names the worker and the cause.
        TerminatedError: this process got SIGTERM or SIGINT; the job has been deleted.
    """
    api = connect(place.namespace)
    identity = JobIdentity(
        name=job_name(run_uri),
        namespace=api.namespace,
        run=run_label(os.environ.get(RUN_VARIABLE) or job_name(run_uri)),
        run_uri=run_uri,
        fingerprint=run.fingerprint,
        token=secrets.token_hex(16),
    )
    launcher = Launcher(api, options, place, run, identity)
    with _stopped_by_signal(launcher.stop):
        launcher.run()


class Launcher:
    """Brings one run to its end on a cluster."""

    def __init__(
        self,
        api: ClusterApi,
        options: TrainOptions,
        place: KubernetesOptions,
        run: TrainingRun,
        identity: JobIdentity,
    ) -> None:
        self._stopping = threading.Event()
        self._api = api.again(deadline_secs=place.api_secs, stopped=self._stopping)
        # On a connection of its own: the signal must not wait for a call that hangs.
        self._stop_api = api.again(deadline_secs=_STOP_SECS)
        self._options = options
        self._place = place
        self._run = run
        self._identity = identity
        self._store: Store = open_store(identity.run_uri)
        self._memory = Memory()
        self._logs = LogFollower(api.again(deadline_secs=0.0))
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._storage_trouble = 0.0
        self._reported = ""
        self._report_due = 0.0

    def run(self) -> None:
        """Create or adopt the job and attend to it until the run is complete."""
        lease = LeaseHolder(self._store, self._place.lease_secs)
        lease.start()
        try:
            self._preflight()
            self._start_watches()
            self._attend()
        except TerminatedError:
            self._delete_and_wait()
            raise
        except RelayError as error:
            # After transient trouble the next attempt adopts the job, which trains on meanwhile.
            if not is_retryable(error.exit_code) and not isinstance(error, _NotOursError):
                self._delete_and_wait()
            raise
        finally:
            self._ended.set()
            lease.release()

    def stop(self) -> None:
        """Ask for the job's deletion at once; called from a thread of its own on a signal."""
        self._stopping.set()
        self._changed.set()
        try:
            self._stop_api.delete_job(self._identity.name)
        except RelayError as error:
            log.warning("the job could not be deleted: %s", error)

    def _preflight(self) -> None:
        missing = self._api.missing_permissions()
        if missing:
            raise _NotOursError(
                f"{self._api.account()} may not {', '.join(missing)} in namespace "
                f"{self._api.namespace}. Bind the Role relay-launcher of manifests/base to it"
            )
        if not self._api.serves_jobs():
            raise _NotOursError(
                "this cluster has no TFJobs (kubeflow.org/v1): install the Kubeflow Training "
                "Operator 1.9, or use launcher=local"
            )
        found = self._api.get_job(self._identity.name)
        if found is not None:
            self._adopt(job_of(found))
            return
        with contextlib.suppress(AlreadyThereError):  # made since: the first look adopts it
            try:
                self._api.create_job(self._manifest(), dry_run=True)
            except InputError as error:
                raise _NotOursError(str(error)) from error

    def _manifest(self) -> dict[str, Any]:
        owner = _owner(self._api)
        identity = JobIdentity(**{**vars(self._identity), "owner": owner})
        return build_tfjob(self._options, self._place, identity)

    def _attend(self) -> None:
        while True:
            if self._stopping.is_set():
                raise TerminatedError(
                    f"training was told to stop; job {self._identity.name} is deleted, its newest "
                    "checkpoint is committed"
                )
            self._changed.clear()
            if self._act():
                return
            self._changed.wait(_LOOK_SECS)
            time.sleep(_MIN_PAUSE_SECS)

    def _act(self) -> bool:
        """Look, decide, act; whether the run has come to its end."""
        try:
            seen = self._look()
        except UnreachableError:
            raise
        except RetryableError as error:  # storage; the cluster's API has its own patience
            self._bear(error)
            return False
        self._storage_trouble = 0.0
        action = decide(seen, self._memory, self._place)
        if isinstance(action, Finish):
            if action.delete:
                self._api.delete_job(self._identity.name)
            return True
        if isinstance(action, Fail):
            self._delete_and_wait()
            raise action.error
        if isinstance(action, Create):
            self._create()
        elif isinstance(action, Delete):
            self._replace(seen.job, action.why)
        elif isinstance(action, Evict):
            for pod in action.pods:
                log.warning(
                    "pod %s should have ended %.0f s ago, node %s does not answer: it is removed "
                    "by force",
                    *(pod.name, pod.grace_over, pod.node),
                )
                self._api.force_delete_pod(pod.name, pod.uid)
        elif isinstance(action, Wait):
            self._report(seen.status, action.report)
        return False

    def _bear(self, error: RetryableError) -> None:
        now = time.monotonic()
        if not self._storage_trouble:
            self._storage_trouble = now
            log.warning("%s; the job runs on meanwhile", error)
        if now - self._storage_trouble > self._place.api_secs:
            raise error

    def _look(self) -> Seen:
        complete = read_completion(self._store) is not None
        found = self._api.get_job(self._identity.name)
        job = job_of(found) if found else None
        if job is not None:
            self._check_ours(job)
        items = self._api.list_pods(self._identity.name)
        pods = pods_of(items, datetime.datetime.now(datetime.UTC))
        self._logs.follow(pods)
        return Seen(
            now=time.monotonic(),
            job=job,
            pods=pods,
            workers=self._options.workers,
            status=self._status(),
            complete=complete,
            age=time.time() - self._run.created,
        )

    def _status(self) -> Status:
        try:
            return read_status(self._store)
        except (ValueError, TypeError):  # written by another version of the worker
            return Status()

    def _create(self) -> None:
        if self._stopping.is_set():
            return
        try:
            self._api.create_job(self._manifest())
            log.info(
                "job %s in namespace %s: %d workers of %s",
                *(self._identity.name, self._api.namespace),
                *(self._options.workers, self._place.image),
            )
        except AlreadyThereError:
            found = self._api.get_job(self._identity.name)
            if found is not None:
                self._adopt(job_of(found))
        if self._stopping.is_set():  # the request to delete may have come before this one
            self._stop_api.delete_job(self._identity.name)
        self._changed.set()

    def _replace(self, job: Job | None, why: str) -> None:
        log.warning("%s: the job is made again, on the same checkpoints", why)
        self._memory.recreations += 1
        self._api.delete_job(self._identity.name, job.uid if job else "")
        self._changed.set()

    def _adopt(self, job: Job) -> None:
        self._check_ours(job)
        log.info("job %s is there already: it is adopted", self._identity.name)

    def _check_ours(self, job: Job) -> None:
        if (job.run_uri, job.fingerprint) == (self._identity.run_uri, self._identity.fingerprint):
            return
        raise _NotOursError(
            f"job {self._identity.name} in namespace {self._api.namespace} is another run's: it "
            f"trains {job.run_uri or 'nothing of ours'} with fingerprint "
            f"{job.fingerprint[:12] or 'none'}, this one is {self._identity.run_uri} with "
            f"{self._identity.fingerprint[:12]}. If nobody needs it: "
            f"kubectl -n {self._api.namespace} delete tfjob {self._identity.name}"
        )

    def _report(self, status: Status, report: str) -> None:
        if report and report != self._reported:
            log.info("%s", report)
        self._reported = report
        if report or not status.step or time.monotonic() < self._report_due:
            return
        self._report_due = time.monotonic() + self._place.report_secs
        left = datetime.timedelta(seconds=round(status.seconds_left))
        log.info(
            "step %d/%d, %.1f steps/s, loss %.4f, %s left, checkpoint of step %d, restarts %d",
            *(status.step, status.target, status.steps_per_second, status.loss, left),
            *(max(status.committed, 0), max(status.incarnation - 1, 0)),
        )

    def _delete_and_wait(self) -> None:
        """Delete the job and see it gone, or say that it is not."""
        deadline = time.monotonic() + _DELETED_SECS
        try:
            while True:
                found = self._stop_api.get_job(self._identity.name)
                if found is None or job_of(found).fingerprint != self._identity.fingerprint:
                    return
                self._stop_api.delete_job(self._identity.name, found["metadata"]["uid"])
                if time.monotonic() > deadline:
                    break
                time.sleep(0.5)
        except RelayError as error:
            log.warning("%s", error)
        log.warning(
            "job %s may still be there; its workers end by themselves when the lease runs out "
            "(%.0f s)",
            *(self._identity.name, self._place.lease_secs),
        )

    def _start_watches(self) -> None:
        for changes in (self._api.changes, self._api.job_changes):
            threading.Thread(
                target=self._watch, args=(changes,), name="relay-watch", daemon=True
            ).start()

    def _watch(self, changes: Callable[[str], Iterator[None]]) -> None:
        while not self._ended.is_set():
            try:
                for _ in changes(self._identity.name):
                    self._changed.set()
            except (k8s.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError):
                pass  # the next look comes by the clock
            self._ended.wait(_WATCH_PAUSE_SECS)


class _NotOursError(InputError):
    """Nothing of ours is running: there is no job to delete."""


def _owner(api: ClusterApi) -> dict[str, Any] | None:
    """Reference to the Workflow that runs this pod, so that deleting the run deletes the job.

    Not to the pod: a replaced launcher must find the job alive.
    """
    name = os.environ.get("KFP_POD_NAME") or os.environ.get("HOSTNAME", "")
    pod = api.get_pod(name) if name and "KUBERNETES_SERVICE_HOST" in os.environ else None
    for owner in (pod or {}).get("metadata", {}).get("ownerReferences") or ():
        if owner["kind"] == "Workflow":
            return {
                **{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")},
                "blockOwnerDeletion": False,
                "controller": False,
            }
    return None


@contextlib.contextmanager
def _stopped_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in a thread as soon as SIGTERM or SIGINT comes, whatever the main thread does."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def wait() -> None:
        if receiver.recv(1):
            stop()

    def ignore(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has already told the thread."""

    previous = {n: signal.signal(n, ignore) for n in (signal.SIGTERM, signal.SIGINT)}
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wait, name="relay-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in previous.items():
            signal.signal(number, handler)
        sender.close()
        thread.join(_STOP_SECS)
        receiver.close()
