"""Checkpoints of a trainer: a copy in host memory between steps, the rest in the background."""

import contextlib
import errno
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

from components.contracts.checkpoint import (
    Arrays,
    CheckpointInfo,
    commit_checkpoint,
    committed_steps,
    load_checkpoint,
    remove_checkpoint,
    state_bytes,
    write_state,
)
from components.contracts.errors import PermanentError, RetryableError
from components.storage.base import Store
from components.storage.errors import (
    AlreadyExistsError,
    CorruptObjectError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from components.train_model.worker.agreement import fetch_file
from components.train_model.worker.fencing import Fence
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.local_tier import LocalTier

log = logging.getLogger("relay.worker")


class Checkpointer:
    """Writes checkpoints one after another in a background thread; training never waits for it.

    Every worker keeps its own in the local tier; the chief also commits to the object store. Beside
    the one that is being written one more waits; a newer one takes its place.
    """

    def __init__(
        self,
        store: Store,
        *,
        fence: Fence | None,
        tier: LocalTier | None,
        heartbeat: Heartbeat,
        writer: str,
        committed: Callable[[CheckpointInfo], None],
        finite: Collection[str] = (),
    ) -> None:
        """Nothing is written yet.

        Args:
            store: opened at the run's uri.
            fence: the chief's right to commit, None on the other workers.
            tier: local checkpoints, None for no such thing.
            heartbeat: told of commits.
            writer: for the manifest.
            committed: called after each commit, in the background thread.
            finite: names of arrays that must have finite values only: the trained weights.
        """
        self._store = store
        self._fence = fence
        self._tier = tier
        self._heartbeat = heartbeat
        self._writer = writer
        self._committed = committed
        self._finite = finite
        self._changed = threading.Condition()
        self._waiting: tuple[CheckpointInfo, Arrays] | None = None
        self._writing = False
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="checkpoint", daemon=True).start()

    def save(self, info: CheckpointInfo, arrays: Arrays) -> None:
        """Have a checkpoint written as soon as the one before is. Raises what that failed with.

        A store that is unavailable is not a failure yet: the next checkpoint tries again.
        """
        with self._changed:
            self._raise_failure(forgive_unavailable=True)
            if self._waiting is not None:
                log.warning(
                    "step %d is not committed: the one before is still being written at step %d",
                    self._waiting[0].step,
                    info.step,
                )
            self._waiting = (info, arrays)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until what was saved last is committed. Raises what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._writing)
            self._raise_failure(forgive_unavailable=False)

    def _raise_failure(self, *, forgive_unavailable: bool) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, StoreUnavailableError) and forgive_unavailable:
            log.warning("a checkpoint was not committed, the next one will be tried: %s", failure)
        elif failure is not None:
            raise failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                assert self._waiting is not None  # noqa: S101 - waited for above
                (info, arrays), self._waiting, self._writing = self._waiting, None, True
            failure: BaseException | None = None
            try:
                self._write(info, arrays)
            except BaseException as error:
                failure = error
            with self._changed:
                self._writing = False
                if self._failure is None or isinstance(self._failure, StoreUnavailableError):
                    self._failure = failure
                self._changed.notify_all()

    def _write(self, info: CheckpointInfo, arrays: Arrays) -> None:
        self._check_finite(info, arrays)
        local = self._keep_locally(info, arrays)
        if self._fence is None:
            return
        with contextlib.nullcontext(local) if local else _temporary_file(arrays) as state:
            self._fence.announce(info.step)
            try:
                commit_checkpoint(self._store, info, state, writer=self._writer)
            except AlreadyExistsError:
                log.info("step %d was committed by an earlier incarnation", info.step)
        self._heartbeat.committed(info.step)
        self._committed(info)

    def _keep_locally(self, info: CheckpointInfo, arrays: Arrays) -> Path | None:
        """The state's file in the local tier; None without one, or if it has no room left."""
        if self._tier is None:
            return None
        try:
            return self._tier.save(info, arrays)
        except OSError as error:
            log.warning("no local copy of step %d, restarts will be slower: %s", info.step, error)
            return None

    def _check_finite(self, info: CheckpointInfo, arrays: Arrays) -> None:
        """The loss of a step is from before its update: that one may have broken the weights."""
        for name in self._finite:
            if not np.isfinite(arrays[name]).all():
                raise PermanentError(
                    f"the weights ({name}) are not finite after step {info.step}: training stops, "
                    "and the last committed checkpoint is from before it. Look for infinite or "
                    "huge feature values, lower the learning rate, or set clip_norm"
                )


@contextlib.contextmanager
def _temporary_file(arrays: Arrays) -> Iterator[Path]:
    """A file of the state, in memory where the disk is full."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-checkpoint-"))
            path = Path(folder, "state")
            write_state(path, arrays)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            memory = stack.enter_context(os.fdopen(os.memfd_create("state"), "wb"))
            memory.write(state_bytes(arrays))
            memory.flush()
            path = Path(f"/proc/self/fd/{memory.fileno()}")
        yield path


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
