"""What the leader decides in a round: restore step and incarnation, or that the run is over."""

import contextlib
import logging
import time
from pathlib import Path

from components.contracts.checkpoint import MANIFEST_NAME, committed_steps, folder_of
from components.contracts.errors import PermanentError
from components.contracts.training_run import read_completion
from components.storage.base import Store
from components.storage.commit import fetch, files_of, open_committed
from components.storage.errors import ConflictError, CorruptObjectError, ObjectNotFoundError
from components.train_model.worker.agreement import PEER_LOST, Decision, Join
from components.train_model.worker.fencing import (
    Incarnation,
    bury_announced,
    read_incarnation,
    take,
)

log = logging.getLogger("relay.worker")

# How many causes of failed starts are kept to be told when the budget is spent, and how many
# restarts for the report.
_CAUSES = 8
_RESTARTS = 200


def decide(
    store: Store, joins: list[Join], *, job: str, max_restarts: int, scratch: Path
) -> Decision:
    """Decide a round.

    Args:
        store: opened at the run's uri.
        joins: by worker index.
        job: names this launch: what an earlier one has spent of its restarts does not count.
        max_restarts: without a newly committed checkpoint.
        scratch: folder in which a committed checkpoint is verified before all rely on it.

    Raises:
        PermanentError: too many restarts without a newly committed checkpoint; tells their causes.
        FencedError: another incarnation started at the same moment.
    """
    while True:
        if read_completion(store) is not None:
            return Decision(complete=True)
        with contextlib.suppress(ConflictError):
            return _decided(store, joins, job, max_restarts, scratch)


def _decided(
    store: Store, joins: list[Join], job: str, max_restarts: int, scratch: Path
) -> Decision:
    previous, generation = read_incarnation(store)
    bury_announced(store, previous)
    step, holder = choose_restore_step(store, joins, scratch)
    incarnation = _next(previous, step, joins, job)
    if incarnation.without_progress > max_restarts + 1:
        raise PermanentError(_spent(incarnation, max_restarts))
    take(store, generation, incarnation)
    return Decision(
        incarnation=incarnation.number,
        members=tuple(join.address for join in joins),
        restore_step=step,
        holder=holder,
        num_restarts=incarnation.number - 1,
        instances=tuple(join.instance for join in joins),
    )


def choose_restore_step(store: Store, joins: list[Join], scratch: Path) -> tuple[int, int]:
    """The newest step that any local tier or the object store holds whole, and who holds it.

    Returns:
        (step, worker), worker -1 for the object store; (-1, -1) to start from the beginning.

    Raises:
        CorruptObjectError: checkpoints are committed, but all of them are damaged.
    """
    local = max(((s, j.worker) for j in joins for s in j.local_steps), default=(-1, -1))
    damage: CorruptObjectError | None = None
    for step in reversed(committed_steps(store)):
        if step <= local[0]:
            return local
        try:
            if _verified(store, step, scratch):
                return step, -1
        except CorruptObjectError as error:
            damage = error
            log.warning("checkpoint of step %d is passed over: %s", step, error)
    if local[0] < 0 and damage is not None:
        raise damage
    return local


def _verified(store: Store, step: int, scratch: Path) -> bool:
    manifest = open_committed(store, f"{folder_of(step)}/{MANIFEST_NAME}")
    if manifest is None or manifest.get("buried"):
        return False
    target = scratch / "verify"
    try:
        for file in files_of(manifest):
            fetch(store, file, target)
    except ObjectNotFoundError as error:
        raise CorruptObjectError(str(error)) from error
    finally:
        target.unlink(missing_ok=True)
    return True


def _next(previous: Incarnation, step: int, joins: list[Join], job: str) -> Incarnation:
    stuck = previous.job == job and previous.number > 0 and step <= previous.restore_step
    now = time.time()
    found = {join.worker: _cause_of(join, previous.job == job) for join in joins}
    known = {worker: cause for worker, cause in found.items() if cause and previous.number}
    # What the others saw of it is told only where nothing better is known.
    roots = {w: cause for w, cause in known.items() if not cause.startswith(PEER_LOST)} or known
    causes = tuple(f"worker {worker}: {cause}" for worker, cause in roots.items())
    restart = {
        "step": max(step, 0),
        "time": round(now, 3),
        "worker": min(roots, default=0),
        "cause": "; ".join(causes) or "unknown",
    }
    return Incarnation(
        number=previous.number + 1,
        restore_step=step,
        without_progress=previous.without_progress + 1 if stuck else 1,
        causes=((previous.causes if stuck else ()) + causes)[-_CAUSES:],
        taken=now,
        job=job,
        restarts=(*previous.restarts, *([restart] if previous.number else []))[-_RESTARTS:],
    )


def _cause_of(join: Join, same_job: bool) -> str:
    if join.cause or join.seen:
        return join.cause
    if same_job:
        return "its process was started again (killed, preempted or moved)"
    return "a new launch of the run" if join.worker == 0 else ""


def _spent(incarnation: Incarnation, max_restarts: int) -> str:
    since = f"since step {max(incarnation.restore_step, 0)}"
    causes = "; ".join(dict.fromkeys(incarnation.causes)) or "unknown"
    text = f"{max_restarts + 1} starts with no progress {since}, the budget is {max_restarts} "
    text += f"restarts (max_restarts). Causes: {causes}"
    killed = "SIGKILL" in causes or "exit code 137" in causes
    if killed:
        text += ". Killed again and again: likely out of memory"
    if killed or "out of memory" in causes:
        text += ". Lower batch_size, raise gradient_accumulation, or give the workers more memory"
    if "no progress for" in causes:
        text += (
            ". Look at the stacks in the log; if the work is only slow, raise that phase's limit"
        )
    return text
