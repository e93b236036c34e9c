"""One incarnation's training, from rendezvous to the final barrier, in the trainer's process."""

import functools
import logging
import time
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.contracts.checkpoint import Arrays, CheckpointInfo, load_checkpoint
from components.contracts.command_line import options_from
from components.contracts.dataset import open_dataset
from components.contracts.errors import (
    EXIT_OK,
    EXIT_TERMINATED,
    InputError,
    RetryableError,
)
from components.contracts.training_run import COMPLETE_NAME, Completion, to_json_bytes
from components.contracts.user_model import load_user_model
from components.storage.errors import AlreadyExistsError
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import PEER_LOST
from components.train_model.worker.assignment import Assignment
from components.train_model.worker.checkpointing import Checkpointer, Retention, restore
from components.train_model.worker.checks import check_finite, check_outputs
from components.train_model.worker.event_files import EventFiles
from components.train_model.worker.fencing import Fence, read_incarnation
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.input import (
    BatchPlan,
    RecordReader,
    training_batches,
    validation_batches,
)
from components.train_model.worker.ledger import Ledger
from components.train_model.worker.local_tier import LocalTier
from components.train_model.worker.loop import TrainLoop, steps_in_a_call
from components.train_model.worker.progress import DataWait, EarlyStopping, History
from components.train_model.worker.rendezvous import meet_peers
from components.train_model.worker.state import TrainerState

log = logging.getLogger("relay.worker")
# What it says at this level (devices, numbers of all-reduces) is of use to nobody here.
logging.getLogger("tensorflow").setLevel(logging.WARNING)

VALIDATION_BATCH = 1024
_POLL_SECS = 0.005
_MEETING_SECS = 1.0


def train(assignment: Assignment, heartbeat: Heartbeat) -> int:
    """Train to the end or to an agreed stop; returns the exit code.

    Raises:
        InputError, PermanentError: training cannot succeed.
        FencedError: a newer incarnation has taken over.
        RetryableError and TensorFlow's errors of lost peers: start again.
    """
    return Training(assignment, heartbeat).run()


class Training:
    """A trainer's work, from its data to the final barrier."""

    def __init__(self, assignment: Assignment, heartbeat: Heartbeat) -> None:
        self._assignment = assignment
        self._heartbeat = heartbeat
        self._options = options_from(TrainOptions, assignment.options)
        self._is_chief = assignment.worker == 0
        self._store = open_store(assignment.run_uri)
        self._tier = (
            LocalTier(Path(assignment.tier), assignment.fingerprint) if assignment.tier else None
        )
        self._ledger = Ledger(assignment.started)
        self._step, self._saved_step = 0, -1
        self._data_wait = self._checkpoint_wait = 0.0
        self._warm: Arrays = {}

    @property
    def loop(self) -> TrainLoop:
        """The compiled loop, once prepared."""
        return self._loop

    def run(self) -> int:
        """Train to the end or to an agreed stop; returns the exit code. Raises as `train` does."""
        stopped = self._train_epochs(self.prepare())
        self._finish(stopped)
        return EXIT_TERMINATED if stopped else EXIT_OK

    def prepare(self) -> Any:
        """Meet the peers, build and restore; returns the iterator of batches from there on."""
        user = load_user_model(self._options.model_module)
        self._open_data()
        loaded = self._load()
        self._wait_for_peers()
        strategy = self._rendezvous()
        self._heartbeat.beat("build")
        # Not before: its tables would start the runtime, which the strategy must configure first.
        self._preprocess = user.preprocessing(self._dataset.schema)
        with strategy.scope():
            model = user.build(self._dataset.schema, self._options.hyperparameters)
            check_outputs(model, self._dataset.schema.task, len(self._dataset.schema.classes))
            self._loop = TrainLoop(strategy, model, self._options)
        self._set_up_state()
        self._restore(loaded)
        return self._first_batches()

    def _open_data(self) -> None:
        options = self._options
        self._heartbeat.beat("data")
        store = open_store(options.dataset_uri)
        self._dataset = open_dataset(store)
        cache = Path(self._assignment.cache)
        fetched = functools.partial(self._heartbeat.beat, "data")
        self._reader = RecordReader(store, self._dataset, options.split, cache, fetched)
        self._plan = BatchPlan(
            num_records=self._reader.num_records,
            batch_size=options.batch_size,
            workers=options.workers,
            worker=self._assignment.worker,
            accumulation=options.gradient_accumulation,
            seed=options.seed,
        )
        self._validation = (
            RecordReader(store, self._dataset, options.validation_split, cache, fetched)
            if options.validation_split
            else None
        )
        planned = self._plan.steps_per_epoch * options.epochs
        self._target = min(planned, options.max_steps) if options.max_steps else planned

    def _load(self) -> tuple[CheckpointInfo, Arrays] | None:
        """The agreed checkpoint, in host memory: peers are met when nothing slow is left to do."""
        assignment = self._assignment
        if assignment.restore_step < 0:
            if assignment.num_restarts:
                self._resume_ledger({"seconds": {}, "until": assignment.started})
            self._warm = self._load_warm_start()
            return None
        began = time.time()
        self._heartbeat.beat("restore", assignment.restore_step)
        info, arrays = restore(
            self._store,
            assignment.restore_step,
            tier=self._tier,
            holder=assignment.holder,
            token=assignment.token,
        )
        if info.fingerprint != assignment.fingerprint:
            raise InputError(
                f"checkpoint {info.step} under {assignment.run_uri} was written by another "
                "model, dataset or other options. Train to a new output uri"
            )
        self._resume_ledger(info.position["ledger"])
        self._ledger.charge("start_up", until=began)
        self._ledger.charge("restore")
        return info, arrays

    def _load_warm_start(self) -> Arrays:
        """Another run's checkpoint to begin with, empty without one."""
        run_uri, _, folder = self._options.warm_start_uri.partition("/checkpoints/step-")
        if not folder:
            return {}
        self._heartbeat.beat("restore")
        return load_checkpoint(open_store(run_uri), int(folder))[1]

    def _resume_ledger(self, state: Mapping[str, Any]) -> None:
        self._ledger.resume(
            state,
            last_progress=self._assignment.last_progress,
            restarted=self._assignment.decided,
        )

    def _wait_for_peers(self) -> None:
        """A rendezvous has a deadline for all, so nobody begins it before everybody can."""
        self._heartbeat.beat("ready")
        while not self._heartbeat.released:
            time.sleep(_POLL_SECS)

    def _rendezvous(self) -> Any:
        self._heartbeat.beat("rendezvous")
        return meet_peers(self._options, self._assignment.members, self._assignment.worker)

    def _set_up_state(self) -> None:
        options, assignment = self._options, self._assignment
        if self._validation is not None:
            x, y = next(iter(self._validation_batches()))
            self._loop.build_metrics(x, y)
        self._state = TrainerState(self._loop, assignment.worker)
        self._history = History(self._target)
        self._early = EarlyStopping(options.early_stopping_metric, options.early_stopping_patience)
        self._retention = Retention(newest=options.keep_newest, every=options.keep_every)
        self._checkpointer = Checkpointer(
            self._store,
            fence=Fence(self._store, assignment.incarnation) if self._is_chief else None,
            tier=self._tier,
            heartbeat=self._heartbeat,
            writer=f"worker {assignment.worker} of incarnation {assignment.incarnation}",
            committed=self._after_commit,
            finite=self._loop.trained,
        )
        restored = max(assignment.restore_step, 0)
        self._events = EventFiles(self._store, restored) if self._is_chief else None
        self._data = DataWait()
        self._metrics: dict[str, float] = {}
        self._ledger.charge("start_up")

    def _after_commit(self, info: CheckpointInfo) -> None:
        self._retention.apply(self._store)
        if self._events is not None:
            self._events.write(info.position["history"]["records"])

    def _restore(self, loaded: tuple[CheckpointInfo, Arrays] | None) -> None:
        if loaded is not None:
            info, arrays = loaded
            self._state.assign(arrays)
            self._take_up(info)
        elif self._warm:
            self._state.warm_start(self._warm, self._options.warm_start_uri)
        self._state.offset_seeds()
        if self._tier is not None:
            self._tier.discard_after(self._step)

    def _take_up(self, info: CheckpointInfo) -> None:
        position = info.position
        self._step = self._saved_step = info.step
        self._history.load(position["history"])
        self._early.load(position["early_stopping"])
        self._metrics = dict(info.metrics)
        self._retention.best_step = self._early.best_step
        log.info("restored step %d", info.step)

    def _first_batches(self) -> Any:
        self._started = time.monotonic()
        self._heartbeat.beat("first_step", self._step)
        batches = iter(
            training_batches(
                self._reader,
                self._plan,
                self._dataset,
                self._preprocess,
                (self._step, self._target),
            )
        )
        if self._options.deterministic and self._step < self._target:
            self._loop.check_reproducible(batches)
        self._own_seconds = self._mean_seconds = 0.0
        return batches

    def _train_epochs(self, batches: Any) -> bool:
        """Train from the current step; whether a stop was agreed on before the end."""
        while self._step < self._target and not self._early.stopped:
            if self.advance(batches):
                return True
        self._reason = self._early.reason or "all steps done"
        return False

    def advance(self, batches: Any) -> bool:
        """Do the steps of one call, and what is due after them; whether a stop was agreed on."""
        stopped = self._call(batches)
        self._at_boundaries()  # also when stopped: a checkpoint there is a validated one
        return stopped

    def _call(self, batches: Any) -> bool:
        """One call of the compiled loop; whether a stop was agreed on."""
        count = min(
            steps_in_a_call(self._options, self._mean_seconds), self._boundary() - self._step
        )
        began = time.monotonic()
        result = self._loop.run(
            batches,
            count,
            stop=self._heartbeat.stop_requested,
            seconds_per_step=self._own_seconds,
        )
        first = self._step == max(self._assignment.restore_step, 0)
        self._own_seconds = 0.0 if first else (time.monotonic() - began) / len(result.losses)
        self._mean_seconds = result.seconds_per_step
        check_finite(result.losses, self._step, self._plan, self._options.split)
        self._step += len(result.losses)
        self._history.add(self._step, result.losses, self._loop.learning_rate_at)
        if first:
            self._ledger.charge("start_up")
        else:
            self._data_wait += result.data_wait
            self._ledger.charge_call(result.data_wait)
        self._record(float(result.losses[-1]))
        return result.stop and self._step < self._target

    def _record(self, loss: float) -> None:
        total = time.monotonic() - self._started
        self._heartbeat.record(
            loss=loss,
            data_wait=self._data_wait,
            checkpoint_wait=self._checkpoint_wait,
            total=total,
            target=self._target,
            goodput=self._ledger.seconds(),
        )
        warning = self._data.observe(self._data_wait, total)
        if warning:
            log.warning("worker %d: %s", self._assignment.worker, warning)
        self._heartbeat.beat("step", self._step)

    @property
    def _epoch_steps(self) -> int:
        return self._plan.steps_per_epoch

    def _boundary(self) -> int:
        """Next step after which something else is due."""
        every = self._options.checkpoint_steps or self._epoch_steps
        intervals = [every] if self._validation is None else [every, self._epoch_steps]
        return min(self._target, *((self._step // each + 1) * each for each in intervals))

    def _at_boundaries(self) -> None:
        every = self._options.checkpoint_steps or self._epoch_steps
        at_end = self._step == self._target
        validated = False
        if self._step % self._epoch_steps == 0 or at_end:
            validated = self._validate()
        if self._step % every == 0 or at_end or self._early.stopped or validated:
            self._save()

    def _validate(self) -> bool:
        if self._validation is None:
            return False
        self._heartbeat.beat("evaluation", self._step)
        batches = self._validation_batches()
        self._metrics = self._loop.evaluate(batches, worker_has_data=True)
        self._history.add_validation(self._step, self._metrics)
        if self._early.observe(self._step, self._metrics):
            self._retention.best_step = self._step
        self._ledger.charge("productive")
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self._metrics.items())
        if self._is_chief:
            log.info("step %d: %s", self._step, shown)
        self._heartbeat.beat("step", self._step)
        return True

    def _validation_batches(self) -> tf.data.Dataset:
        assert self._validation is not None  # noqa: S101 - callers have looked
        return validation_batches(
            self._validation,
            self._dataset,
            self._preprocess,
            batch_size=VALIDATION_BATCH,
            limit=self._options.validation_examples,
            share=(self._assignment.worker, self._options.workers),
        )

    def _save(self) -> None:
        if self._step == self._saved_step:
            return
        self._saved_step = self._step
        self._heartbeat.beat("checkpoint", self._step)
        arrays = self._state.snapshot()
        info = CheckpointInfo(
            step=self._step,
            fingerprint=self._assignment.fingerprint,
            incarnation=self._assignment.incarnation,
            position={
                "epoch": self._step // self._epoch_steps,
                "history": self._history.state(),
                "early_stopping": self._early.state(),
                "ledger": self._ledger.state(),
            },
            metrics=self._metrics if self._history.validated_at == self._step else {},
        )
        self._checkpointer.save(info, arrays)
        self._checkpoint_wait += self._ledger.charge("checkpoint_wait")
        self._heartbeat.beat("step", self._step)

    def _finish(self, stopped: bool) -> None:
        """Commit what is left and wait until every worker knows that it is committed.

        The workers meet again and again meanwhile: one long wait would be a lost peer to TensorFlow
        when storage is slow.
        """
        self._save()
        self._heartbeat.beat("checkpoint", self._step)
        with futures.ThreadPoolExecutor(1) as pool:
            work = pool.submit(self._commit_rest, stopped)
            all_done = any_failed = False
            while not all_done:
                futures.wait([work], _MEETING_SECS)
                if work.done():
                    self._heartbeat.beat("barrier", self._step)
                failed = work.done() and work.exception() is not None
                all_done, any_failed = self._loop.meet(done=work.done(), failed=failed)
        work.result()
        if any_failed:
            raise RetryableError(f"{PEER_LOST}: it could not commit the last step")

    def _commit_rest(self, stopped: bool) -> None:
        self._checkpointer.wait()
        self._ledger.charge("checkpoint_wait")
        if self._is_chief and not stopped:
            self._complete()

    def _complete(self) -> None:
        assert self._events is not None  # noqa: S101 - the chief has them
        self._events.write(self._history.records())
        incarnation, _ = read_incarnation(self._store)
        completion = Completion(
            step=self._step,
            num_epochs=self._step // self._epoch_steps,
            reason=self._reason,
            num_workers=self._options.workers,
            num_restarts=self._assignment.num_restarts,
            goodput=self._ledger.seconds(),
            history=tuple(self._history.records()),
            restarts=incarnation.restarts,
        )
        Fence(self._store, self._assignment.incarnation).announce(self._step)
        try:
            self._store.create(COMPLETE_NAME, to_json_bytes(completion))
        except AlreadyExistsError:
            log.info("the run was completed by an earlier incarnation")
