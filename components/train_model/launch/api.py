"""The few calls to the cluster that the launcher makes, each with deadline and explained errors."""

import datetime
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client as k8s
from kubernetes import config as k8s_config
from kubernetes import watch as k8s_watch

from components.contracts.errors import (
    InputError,
    PermanentError,
    RelayError,
    RetryableError,
    TerminatedError,
)
from components.contracts.job_names import GROUP, PLURAL, VERSION
from components.train_model.launch.tfjob import CONTAINER, worker_selector

log = logging.getLogger("relay.launcher")

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Seconds to connect and to read one answer.
_REQUEST_TIMEOUT = (5.0, 30.0)
_WATCH_SECS = 240
_FIRST_DELAY_SECS, _MAX_DELAY_SECS = 0.5, 15.0
_DEADLINE_SECS = 600.0
# A token may just have expired; one that is wrong stays so.
_UNAUTHORIZED_SECS = 60.0
# At most one warning in this time, however many attempts fail.
_WARN_SECS = 60.0

# What the launcher does: (verb, group, resource, subresource). The Role in manifests/ grants this
# and no more.
PERMISSIONS = (
    ("create", GROUP, PLURAL, ""),
    ("get", GROUP, PLURAL, ""),
    ("list", GROUP, PLURAL, ""),
    ("watch", GROUP, PLURAL, ""),
    ("delete", GROUP, PLURAL, ""),
    ("get", "", "pods", ""),
    ("list", "", "pods", ""),
    ("watch", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "", "events", ""),
)

# Of its own, so that no seed that a caller sets makes all launchers come back at once.
_JITTER = random.SystemRandom()

Answer = TypeVar("Answer")


class AlreadyThereError(RelayError):
    """An object of that name exists."""


class UnreachableError(RetryableError):
    """The cluster's API did not answer in time."""


class ClusterApi:
    """Calls in one namespace. Transient trouble is retried until `deadline_secs` have passed."""

    def __init__(
        self,
        client: k8s.ApiClient,
        namespace: str,
        *,
        deadline_secs: float,
        stopped: threading.Event | None = None,
    ) -> None:
        """Prepare to call.

        Args:
            client: connected.
            namespace: of jobs and pods.
            deadline_secs: for one call with all its attempts.
            stopped: ends the wait between two attempts with TerminatedError.
        """
        self.namespace = namespace
        self._client = client
        self._deadline_secs = deadline_secs
        self._stopped = stopped or threading.Event()
        self._warn_due = 0.0
        self._objects = k8s.CustomObjectsApi(client)
        self._core = k8s.CoreV1Api(client)

    def again(
        self, *, deadline_secs: float, stopped: threading.Event | None = None
    ) -> "ClusterApi":
        """The same API with other patience, on connections of its own."""
        client = k8s.ApiClient(self._client.configuration)
        return ClusterApi(client, self.namespace, deadline_secs=deadline_secs, stopped=stopped)

    def get_job(self, name: str) -> dict[str, Any] | None:
        """The job, or None."""
        return self._found(
            lambda: self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=_REQUEST_TIMEOUT
            ),
            f"get tfjobs {name}",
        )

    def create_job(self, job: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create a job; with `dry_run` only ask whether the cluster would, field by field.

        Raises:
            AlreadyThereError: an object of that name exists.
            InputError: a field is unknown to this cluster's TFJob, or has a value it refuses.
        """
        return self._call(
            lambda: self._objects.create_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                job,
                field_validation="Strict",
                _request_timeout=_REQUEST_TIMEOUT,
                **({"dry_run": "All"} if dry_run else {}),
            ),
            f"create tfjobs {job['metadata']['name']}",
        )

    def delete_job(self, name: str, uid: str = "") -> None:
        """Delete a job, if it is the one with `uid`; none there is as good."""
        body = k8s.V1DeleteOptions(
            propagation_policy="Background",
            preconditions=k8s.V1Preconditions(uid=uid) if uid else None,
        )
        try:
            self._found(
                lambda: self._objects.delete_namespaced_custom_object(
                    *(GROUP, VERSION, self.namespace, PLURAL, name),
                    body=body,
                    _request_timeout=_REQUEST_TIMEOUT,
                ),
                f"delete tfjobs {name}",
            )
        except AlreadyThereError:
            log.info("job %s was replaced in the meantime: it is left alone", name)

    def list_pods(self, job: str) -> list[dict[str, Any]]:
        """Pods of a job, as JSON objects."""
        return self._items(
            lambda: self._core.list_namespaced_pod(
                self.namespace,
                label_selector=worker_selector(job),
                _request_timeout=_REQUEST_TIMEOUT,
            ),
            "list pods",
        )

    def get_pod(self, name: str) -> dict[str, Any] | None:
        """A pod as a JSON object, or None."""
        found = self._found(
            lambda: self._core.read_namespaced_pod(
                name, self.namespace, _request_timeout=_REQUEST_TIMEOUT
            ),
            f"get pods {name}",
        )
        return dict(self._client.sanitize_for_serialization(found)) if found else None

    def force_delete_pod(self, name: str, uid: str) -> None:
        """Take a pod's name away from a node that does not answer."""
        body = k8s.V1DeleteOptions(
            grace_period_seconds=0, preconditions=k8s.V1Preconditions(uid=uid)
        )
        try:
            self._found(
                lambda: self._core.delete_namespaced_pod(
                    name, self.namespace, body=body, _request_timeout=_REQUEST_TIMEOUT
                ),
                f"delete pods {name}",
            )
        except AlreadyThereError:
            return

    def list_events(self, name: str) -> list[dict[str, Any]]:
        """Events about the object of that name."""
        return self._items(
            lambda: self._core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.name={name}",
                _request_timeout=_REQUEST_TIMEOUT,
            ),
            "list events",
        )

    def follow_log(self, pod: str, since: str) -> Iterator[str]:
        """Lines of a worker's log with their time stamps, from `since` (RFC 3339) on, as they come.

        Ends when the container ends or the connection does; raises what the client raises.
        """
        answer = self._core.read_namespaced_pod_log(
            pod,
            self.namespace,
            container=CONTAINER,
            follow=True,
            timestamps=True,
            _preload_content=False,
            _request_timeout=(_REQUEST_TIMEOUT[0], 3600.0),
            **({"since_seconds": _age(since)} if since else {}),
        )
        rest = b""
        try:
            for piece in answer.stream(1 << 16, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
        finally:
            answer.release_conn()

    def changes(self, job: str) -> Iterator[None]:
        """One item for every change of a job or its pods, until the watch ends."""
        stream = k8s_watch.Watch().stream(
            self._core.list_namespaced_pod,
            self.namespace,
            label_selector=worker_selector(job),
            timeout_seconds=_WATCH_SECS,
            _request_timeout=(_REQUEST_TIMEOUT[0], _WATCH_SECS + 30.0),
        )
        for _ in stream:
            yield None

    def job_changes(self, job: str) -> Iterator[None]:
        """One item for every change of the job itself, until the watch ends."""
        stream = k8s_watch.Watch().stream(
            self._objects.list_namespaced_custom_object,
            *(GROUP, VERSION, self.namespace, PLURAL),
            field_selector=f"metadata.name={job}",
            timeout_seconds=_WATCH_SECS,
            _request_timeout=(_REQUEST_TIMEOUT[0], _WATCH_SECS + 30.0),
        )
        for _ in stream:
            yield None

    def missing_permissions(self) -> list[str]:
        """What this account may not do of PERMISSIONS, for people."""
        reviews = k8s.AuthorizationV1Api(self._client)
        missing = []
        for verb, group, resource, subresource in PERMISSIONS:
            review = k8s.V1SelfSubjectAccessReview(
                spec=k8s.V1SelfSubjectAccessReviewSpec(
                    resource_attributes=k8s.V1ResourceAttributes(
                        namespace=self.namespace,
                        verb=verb,
                        group=group,
                        resource=resource,
                        subresource=subresource,
                    )
                )
            )
            answer = self._call(
                lambda review=review: reviews.create_self_subject_access_review(  # type: ignore[misc]
                    review, _request_timeout=_REQUEST_TIMEOUT
                ),
                "create selfsubjectaccessreviews",
            )
            if not answer.status.allowed:
                shown = f"{resource}/{subresource}" if subresource else resource
                missing.append(f"{verb} {shown}" + (f".{group}" if group else ""))
        return missing

    def account(self) -> str:
        """Who this is, as the cluster knows it; "this account" where it cannot be asked."""
        try:
            answer = k8s.AuthenticationV1Api(self._client).create_self_subject_review(
                k8s.V1SelfSubjectReview(), _request_timeout=_REQUEST_TIMEOUT
            )
            return str(answer.status.user_info.username)
        except (k8s.ApiException, urllib3.exceptions.HTTPError, ValueError):
            return "this account"

    def serves_jobs(self) -> bool:
        """Whether the cluster has TFJobs at all."""
        found = self._found(
            lambda: self._client.call_api(
                f"/apis/{GROUP}/{VERSION}",
                "GET",
                auth_settings=["BearerToken"],
                response_type="object",
                _return_http_data_only=True,
                _request_timeout=_REQUEST_TIMEOUT,
            ),
            f"get /apis/{GROUP}/{VERSION}",
        )
        return any(entry["name"] == PLURAL for entry in (found or {}).get("resources", []))

    def _items(self, action: Callable[[], Any], what: str) -> list[dict[str, Any]]:
        answer = self._call(action, what)
        return [dict(self._client.sanitize_for_serialization(item)) for item in answer.items]

    def _found(self, action: Callable[[], Answer], what: str) -> Answer | None:
        try:
            return self._call(action, what)
        except _NotFoundError:
            return None

    def _call(self, action: Callable[[], Answer], what: str) -> Answer:
        began, delay = time.monotonic(), _FIRST_DELAY_SECS
        while True:
            try:
                return action()
            except k8s.ApiException as error:
                trouble = self._explained(error, what)
                wait = _retry_after(error)
                patience = _UNAUTHORIZED_SECS if error.status == 401 else self._deadline_secs
            except (urllib3.exceptions.HTTPError, OSError) as error:
                patience = self._deadline_secs
                trouble = UnreachableError(f"{what}: the cluster's API does not answer: {error}")
                wait = 0.0
            if not isinstance(trouble, UnreachableError) or time.monotonic() - began > patience:
                raise trouble
            if time.monotonic() >= self._warn_due:
                self._warn_due = time.monotonic() + _WARN_SECS
                log.warning("%s; it is tried again", trouble)
            if self._stopped.wait(max(wait, delay * _JITTER.uniform(0.5, 1.0))):
                raise TerminatedError(f"told to stop while waiting for the cluster ({trouble})")
            delay = min(2 * delay, _MAX_DELAY_SECS)

    def _explained(self, error: k8s.ApiException, what: str) -> RelayError:
        said = _message_of(error)
        if error.status == 404:
            return _NotFoundError(f"{what}: {said}")
        if error.status == 409:
            return AlreadyThereError(f"{what}: {said}")
        if error.status == 403 and "exceeded quota" in said:
            return PermanentError(
                f"{what}: the quota of namespace {self.namespace} is used up: {said}. Wait for "
                "other jobs to end, ask for less (workers, resources), or have the quota raised"
            )
        if error.status == 403:
            return InputError(
                f"{self.account()} may not {what} in namespace {self.namespace}: {said}. "
                "Bind the Role relay-launcher of manifests/base to it"
            )
        if error.status in (400, 422):
            return InputError(f"{what}: the cluster refuses it: {said}")
        return UnreachableError(f"{what}: the cluster's API answered {error.status}: {said}")


class _NotFoundError(InputError):
    """No such object, or no such namespace or kind."""


def connect(namespace: str) -> ClusterApi:
    """Connect from inside a pod, or by KUBECONFIG from outside.

    Raises:
        InputError: there is neither.
    """
    configuration = k8s.Configuration()
    try:
        k8s_config.load_incluster_config(client_configuration=configuration)
        own = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except k8s_config.ConfigException:
        try:
            k8s_config.load_kube_config(client_configuration=configuration)
            own = "default"
        except k8s_config.ConfigException as error:
            raise InputError(
                f"launcher=kubernetes finds no cluster: this is not a pod, and KUBECONFIG does not "
                f"help ({error}). Use launcher=local to train on this machine"
            ) from error
    configuration.retries = False  # attempts are counted here
    return ClusterApi(k8s.ApiClient(configuration), namespace or own, deadline_secs=_DEADLINE_SECS)


def _message_of(error: k8s.ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body or error.reason)[:500]


def _retry_after(error: k8s.ApiException) -> float:
    value = (error.headers or {}).get("Retry-After", "")
    return min(float(value), _MAX_DELAY_SECS) if str(value).isdigit() else 0.0


def _age(since: str) -> int:
    """Whole seconds since an RFC 3339 time, at least 1."""
    moment = datetime.datetime.fromisoformat(since[:19] + "+00:00")
    return max(1, int((datetime.datetime.now(datetime.UTC) - moment).total_seconds()) + 1)
