"""Checkpoints of a trainer: a copy in host memory between steps, the rest in the background."""

import logging
import tempfile
import threading
from pathlib import Path

from components.contracts.checkpoint import (
    Arrays,
    CheckpointInfo,
    commit_checkpoint,
    committed_steps,
    load_checkpoint,
    remove_checkpoint,
    write_state,
)
from components.contracts.errors import RetryableError
from components.storage.base import Store
from components.storage.errors import AlreadyExistsError, CorruptObjectError, ObjectNotFoundError
from components.train_model.worker.agreement import fetch_file
from components.train_model.worker.fencing import Fence
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.local_tier import LocalTier

log = logging.getLogger("relay.worker")


class Checkpointer:
    """Writes checkpoints one at a time in a background thread.

    Every worker keeps its own in the local tier; the chief also commits to the object store.
    """

    def __init__(
        self,
        store: Store,
        *,
        fence: Fence | None,
        tier: LocalTier | None,
        heartbeat: Heartbeat,
        writer: str,
        keep: "Retention",
    ) -> None:
        """`fence` is the chief's right to commit, None on the other workers."""
        self._store = store
        self._fence = fence
        self._tier = tier
        self._heartbeat = heartbeat
        self._writer = writer
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, info: CheckpointInfo, arrays: Arrays) -> None:
        """Start writing a checkpoint; waits for the one before. Raises what that one failed with.

        A store that is unavailable is not a failure yet: the next checkpoint tries again.
        """
        self.wait(forgive_unavailable=True)
        self._thread = threading.Thread(
            target=self._run, args=(info, arrays), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, *, forgive_unavailable: bool = False) -> None:
        """Wait until what was saved is committed. Raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if isinstance(failure, RetryableError) and forgive_unavailable and failure.exit_code == 200:
            log.warning("a checkpoint was not committed, the next one will be tried: %s", failure)
        elif failure is not None:
            raise failure

    def _run(self, info: CheckpointInfo, arrays: Arrays) -> None:
        try:
            self._write(info, arrays)
        except BaseException as error:
            self._failure = error

    def _write(self, info: CheckpointInfo, arrays: Arrays) -> None:
        with tempfile.TemporaryDirectory(prefix="relay-checkpoint-") as folder:
            if self._tier is not None:
                state = self._tier.save(info, arrays)
            elif self._fence is not None:
                state = Path(folder, "state")
                write_state(state, arrays)
            if self._fence is None:
                return
            self._fence.announce(info.step)
            try:
                commit_checkpoint(self._store, info, state, writer=self._writer)
            except AlreadyExistsError:
                log.info("step %d was committed by an earlier incarnation", info.step)
        self._heartbeat.committed(info.step)
        self._keep.apply(self._store)


class Retention:
    """Which committed checkpoints stay: the newest few, every M-th, and the best."""

    def __init__(self, *, newest: int, every: int) -> None:
        """`newest` at least 1; `every` 0 keeps none for being a multiple."""
        self._newest = newest
        self._every = every
        self.best_step = -1

    def apply(self, store: Store) -> None:
        """Remove what need not stay. Trouble here is only logged: it loses nothing."""
        try:
            steps = committed_steps(store)
            for step in steps[: -self._newest]:
                if step == self.best_step or (self._every and step % self._every == 0):
                    continue
                remove_checkpoint(store, step)
        except RetryableError as error:
            log.warning("old checkpoints were not removed: %s", error)


def restore(
    store: Store, step: int, *, tier: LocalTier | None, holder: str, token: str
) -> tuple[CheckpointInfo, Arrays]:
    """Load the agreed step: from this worker's tier, else its holder's, else the object store.

    Raises:
        RetryableError: no place holds it whole any more; the next agreement will choose another.
    """
    if tier is not None:
        if step not in tier.steps() and holder:
            for name in tier.names_of(step):
                if not fetch_file(holder, token, name, tier.path_of(step).with_name(name)):
                    break
        if step in tier.steps():
            try:
                return tier.load(step)
            except CorruptObjectError as error:
                log.warning("the local checkpoint of step %d is damaged: %s", step, error)
                tier.remove(step)
    try:
        return load_checkpoint(store, step)
    except (CorruptObjectError, ObjectNotFoundError) as error:
        raise RetryableError(f"the agreed checkpoint of step {step} is gone: {error}") from error
