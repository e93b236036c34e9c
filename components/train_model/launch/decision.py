"""What to do about a job, decided from what is seen of it and what is remembered; no calls here."""

import math
from dataclasses import dataclass, field

from components.contracts.errors import (
    EXIT_PERMANENT,
    InputError,
    PermanentError,
    RelayError,
    RetryableError,
    StalledError,
    error_for,
    is_retryable,
)
from components.train_model.launch.options import KubernetesOptions
from components.train_model.launch.view import Job, Pod
from components.train_model.worker.ending import OUT_OF_MEMORY
from components.train_model.worker.lease import LEASE_MESSAGE
from components.train_model.worker.status import Status

# A worker that failed for good is the operator's to report; without an operator it is ours.
_OPERATOR_SECS = 30.0
# complete.json is written before the workers end; a job that outlives it so long is removed.
FINISH_SECS = 120.0
_MAX_SHOWN = 400


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One look at the cluster and at storage.

    Attributes:
        now: seconds of the monotonic clock.
        job: None if there is none.
        pods: of the job.
        workers: how many there should be.
        status: of the run.
        complete: the run is complete in storage.
        age: seconds since the run was first started.
    """

    now: float
    job: Job | None
    pods: tuple[Pod, ...]
    workers: int
    status: Status
    complete: bool
    age: float = 0.0


@dataclass(kw_only=True)
class Memory:
    """What the launcher remembers between two looks.

    Attributes:
        since: when each trouble was first seen in an unbroken row, by name.
        progress: what last counted as progress.
        progressed: when that was.
        recreations: of the job since then.
        starts: pods seen of each worker since the last newly committed checkpoint.
        last_words: what ended containers said, by worker.
    """

    since: dict[str, float] = field(default_factory=dict)
    progress: tuple[int, int] = (-1, -1)
    progressed: float = -math.inf
    committed: int = -1
    recreations: int = 0
    starts: dict[int, set[str]] = field(default_factory=dict)
    last_words: dict[int, str] = field(default_factory=dict)

    def lasting(self, trouble: str, present: bool, now: float) -> float:
        """Seconds for which a trouble has been there without a break."""
        if not present:
            self.since.pop(trouble, None)
            return 0.0
        return now - self.since.setdefault(trouble, now)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do; `report` is worth a line in the log if it is new."""

    report: str = ""


@dataclass(frozen=True, kw_only=True)
class Create:
    """Make the job."""


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete the job, to make it again."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Evict:
    """Take the name from pods on nodes that do not answer."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The run is complete; `delete` the job if it has not ended by itself."""

    delete: bool


@dataclass(frozen=True, kw_only=True)
class Fail:
    """End the job and the step."""

    error: RelayError


Action = Wait | Create | Delete | Evict | Finish | Fail


def decide(seen: Seen, memory: Memory, place: KubernetesOptions) -> Action:
    """Decide on the next action and bring the memory up to date."""
    _remember(seen, memory)
    if seen.complete:
        return _finish(seen, memory)
    if place.deadline_secs and seen.age > place.deadline_secs:
        return Fail(error=PermanentError(_deadline(seen, place)))
    if seen.job is None:
        return _make(memory, place)
    if seen.job.deleting:
        return _lost_pods(seen, place) or Wait(report="the job is being deleted")
    broken = _failed_worker(seen, memory)
    if broken is not None and broken.message.startswith(LEASE_MESSAGE):
        return Delete(why=f"worker {broken.worker}: {broken.message}")
    if broken is not None:
        return Fail(error=_worker_error(broken))
    if seen.job.state == "failed":
        return _after_failure(seen, memory, place)
    if seen.job.state == "succeeded":
        return _after_success(seen, memory)
    return (
        _lost_pods(seen, place)
        or _not_started(seen, memory, place)
        or _restart_loop(memory, place)
        or _stalled(seen, memory, place)
        or Wait()
    )


def _remember(seen: Seen, memory: Memory) -> None:
    marks = (seen.status.incarnation, seen.status.step)
    if marks != memory.progress or memory.progressed == -math.inf:
        memory.progress, memory.progressed = marks, seen.now
    if seen.status.committed > memory.committed:
        memory.committed = seen.status.committed
        memory.recreations = 0
        memory.starts.clear()
    for pod in seen.pods:
        memory.starts.setdefault(pod.worker, set()).add(pod.uid)
        if pod.exit_code is not None:
            memory.last_words[pod.worker] = _ending(pod)


def _finish(seen: Seen, memory: Memory) -> Action:
    if seen.job is None or seen.job.state != "running" or seen.job.deleting:
        return Finish(delete=False)
    waited = memory.lasting("finish", True, seen.now)
    if waited > FINISH_SECS:
        return Finish(delete=True)
    return Wait(report="the run is complete; the workers are ending")


def _make(memory: Memory, place: KubernetesOptions) -> Action:
    if memory.recreations > place.max_recreations:
        words = "; ".join(f"worker {w}: {text}" for w, text in sorted(memory.last_words.items()))
        return Fail(
            error=RetryableError(
                f"the job was made {memory.recreations} times with no newly committed checkpoint "
                f"(max_recreations {place.max_recreations}). {words or 'No worker said why'}. "
                "Look at the nodes: drains, evictions, preemptions"
            )
        )
    return Create()


def _failed_worker(seen: Seen, memory: Memory) -> Pod | None:
    """A worker that ended for good, once the operator has said so or had the time to."""
    ended = [
        pod
        for pod in seen.pods
        if pod.exit_code is not None and pod.exit_code > 0 and not is_retryable(pod.exit_code)
    ]
    lasting = memory.lasting("failed worker", bool(ended), seen.now)
    if not ended:
        return None
    # The worker that told a cause beats one that only noticed that its peers were gone.
    chosen = max(ended, key=lambda pod: (bool(pod.message), -pod.worker))
    operator_agrees = seen.job is not None and seen.job.state == "failed"
    return chosen if operator_agrees or lasting > _OPERATOR_SECS else None


def _after_failure(seen: Seen, memory: Memory, place: KubernetesOptions) -> Action:
    """No worker failed for good, so the operator gave up over the cluster's own doings."""
    assert seen.job is not None  # noqa: S101 - the caller has looked
    return Delete(why=f"the operator gave the job up: {_short(seen.job.message)}")


def _after_success(seen: Seen, memory: Memory) -> Action:
    if memory.lasting("succeeded", True, seen.now) < _OPERATOR_SECS:
        return Wait()
    return Fail(
        error=PermanentError(
            "the job is Succeeded, but the run has no complete.json: worker 0 ended with 0 without "
            "finishing. Is the image's command Relay's worker?"
        )
    )


def _lost_pods(seen: Seen, place: KubernetesOptions) -> Action | None:
    """Pods whose node does not end them: they would keep their names for ever.

    Safe although their containers may run on: only the newest incarnation commits.
    """
    lost = tuple(pod for pod in seen.pods if pod.deleting and pod.grace_over > place.lost_node_secs)
    return Evict(pods=lost) if lost else None


def _not_started(seen: Seen, memory: Memory, place: KubernetesOptions) -> Action | None:
    troubles: tuple[tuple[str, str, type[RelayError]], ...] = (
        ("image", _image_trouble(seen), InputError),
        ("config", _config_trouble(seen), InputError),
        ("unschedulable", _unschedulable(seen), RetryableError),
        ("absent", _absent(seen), RetryableError),
    )
    report = ""
    for name, text, kind in troubles:
        lasting = memory.lasting(name, bool(text), seen.now)
        if not text:
            continue
        if "InvalidImageName" in text or lasting > place.pending_secs:
            return Fail(error=kind(f"{text} (for {lasting:.0f} s, pending_secs)"))
        report = report or text
    return Wait(report=report) if report else None


def _image_trouble(seen: Seen) -> str:
    for pod in seen.pods:
        if pod.image_trouble:
            return (
                f"worker {pod.worker}: the image cannot be pulled: {_short(pod.image_trouble)}. "
                "Check the name and image_pull_secrets"
            )
    return ""


def _config_trouble(seen: Seen) -> str:
    for pod in seen.pods:
        if pod.config_trouble:
            return (
                f"worker {pod.worker}: the container cannot be made: {_short(pod.config_trouble)}. "
                "Check the secrets, config maps and volumes that env and volumes name"
            )
    return ""


def _unschedulable(seen: Seen) -> str:
    for pod in seen.pods:
        if pod.unschedulable and not pod.deleting:
            return (
                f"worker {pod.worker} fits no node: {_short(pod.unschedulable)}. Ask for less "
                "(resources, node_selector, affinity), tolerate the taint, or add nodes"
            )
    return ""


def _absent(seen: Seen) -> str:
    missing = sorted(set(range(seen.workers)) - {pod.worker for pod in seen.pods})
    if not missing:
        return ""
    names = ", ".join(map(str, missing))
    return (
        f"there is no pod of worker {names}: the Training Operator may be down, or quota or "
        "admission refuses the pod (kubectl describe tfjob says which)"
    )


def _restart_loop(memory: Memory, place: KubernetesOptions) -> Action | None:
    for worker, uids in sorted(memory.starts.items()):
        if len(uids) > place.max_pod_starts:
            words = memory.last_words.get(worker, "it said nothing")
            return Fail(
                error=PermanentError(
                    f"worker {worker} was started {len(uids)} times with no newly committed "
                    f"checkpoint since step {max(memory.committed, 0)} (max_pod_starts). "
                    f"Last end: {words}"
                )
            )
    return None


def _stalled(seen: Seen, memory: Memory, place: KubernetesOptions) -> Action | None:
    still = seen.now - memory.progressed
    if still <= place.stall_secs:
        return None
    return Fail(
        error=StalledError(
            f"no step, checkpoint or restart for {still:.0f} s (stall_secs): step "
            f"{seen.status.step} of {seen.status.target or 'unknown'}, phase {seen.status.phase}. "
            "The job is ended; the next attempt goes on from the newest checkpoint"
        )
    )


def _worker_error(pod: Pod) -> RelayError:
    code = pod.exit_code or EXIT_PERMANENT
    return error_for(code if code in (64, 70) else EXIT_PERMANENT, _ending(pod))


def _ending(pod: Pod) -> str:
    said = _short(pod.message.strip()) or pod.reason or "it said nothing, see its log"
    text = f"worker {pod.worker} ended with exit code {pod.exit_code}"
    if pod.reason == "OOMKilled":
        return f"{text}: {OUT_OF_MEMORY}"
    return f"worker {pod.worker}: {said}" if pod.exit_code in (64, 70) else f"{text}: {said}"


def _deadline(seen: Seen, place: KubernetesOptions) -> str:
    return (
        f"the run took {seen.age:.0f} s and deadline_secs is {place.deadline_secs}: it is ended at "
        f"step {seen.status.step} of {seen.status.target or 'unknown'}; its newest checkpoint stays"
    )


def _short(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _MAX_SHOWN else joined[: _MAX_SHOWN - 3] + "..."
