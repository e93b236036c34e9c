"""A worker's metrics in Prometheus' exposition format."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from components.train_model.worker.heartbeat import Beat


class WorkerMetrics:
    """What /metrics shows; names begin with relay_."""

    def __init__(self, worker: int, batch_size: int) -> None:
        """`batch_size`: examples of one step over all workers."""
        self._batch_size = batch_size
        self._committed_step, self._committed_at = -1, time.monotonic()
        self._registry = CollectorRegistry()
        labels = {"worker": str(worker)}

        def gauge(name: str, text: str) -> Gauge:
            made = Gauge(name, text, ["worker"], registry=self._registry)
            return made.labels(**labels)

        self._step = gauge("relay_step", "Completed training steps.")
        self._target = gauge("relay_target_steps", "Steps after which training ends.")
        self._age = gauge("relay_heartbeat_age_seconds", "Time since the trainer showed progress.")
        self._committed = gauge("relay_checkpoint_step", "Step of the newest committed checkpoint.")
        self._checkpoint_age = gauge(
            "relay_checkpoint_age_seconds",
            "Time since a checkpoint was committed, or since this worker started.",
        )
        self._loss = gauge("relay_loss", "Mean training loss of the last step.")
        self._rate = gauge("relay_steps_per_second", "Steps a second since the last restart.")
        self._examples = gauge(
            "relay_examples_per_second", "Examples a second over all workers, since the restart."
        )
        self._incarnation = gauge("relay_incarnation", "Number of the current incarnation.")
        self._data_wait = gauge("relay_data_wait_ratio", "Share of time spent waiting for data.")
        self._checkpoint_wait = gauge(
            "relay_checkpoint_wait_ratio", "Share of time training stood still for checkpoints."
        )
        self._goodput = Gauge(
            "relay_goodput_seconds",
            "Time since the run was first started, by what it went into.",
            ["worker", "bucket"],
            registry=self._registry,
        )
        self._restarts = Counter(
            "relay_restarts",
            "Restarts of this worker's trainer by reason.",
            ["worker", "reason"],
            registry=self._registry,
        )
        self._labels = labels

    def restarted(self, reason: str) -> None:
        """Count a restart: killed, oom, stalled, peer, error or terminated."""
        self._restarts.labels(**self._labels, reason=reason).inc()

    def incarnation(self, number: int) -> None:
        """Note the current incarnation."""
        self._incarnation.set(number)

    def update(self, beat: Beat, first_step: int) -> None:
        """Take over a heartbeat; `first_step` is where this incarnation began."""
        self._step.set(beat.step)
        self._target.set(beat.target)
        self._age.set(beat.age)
        self._note_commit(beat.committed)
        self._loss.set(beat.loss)
        total = max(beat.total, 1e-9)
        rate = max(beat.step - first_step, 0) / total if beat.total else 0.0
        self._rate.set(rate)
        self._examples.set(rate * self._batch_size)
        self._data_wait.set(beat.data_wait / total)
        self._checkpoint_wait.set(beat.checkpoint_wait / total)
        if beat.total:  # a process that has just begun does not know yet what came before
            for bucket, seconds in beat.goodput.items():
                self._goodput.labels(**self._labels, bucket=bucket).set(seconds)

    def _note_commit(self, step: int) -> None:
        if step > self._committed_step:
            self._committed_step, self._committed_at = step, time.monotonic()
        self._committed.set(self._committed_step)

    def exposition(self) -> bytes:
        """The text that /metrics answers."""
        self._checkpoint_age.set(time.monotonic() - self._committed_at)
        return generate_latest(self._registry)
