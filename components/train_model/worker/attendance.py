"""What a supervisor does while its trainer runs: look at its heartbeat, and end it when it must."""

import logging
import math
import threading
import time

from components.contracts.errors import EXIT_RETRYABLE, EXIT_TERMINATED
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import Decision
from components.train_model.worker.ending import Ending, ended, given_up, stalled
from components.train_model.worker.heartbeat import Beat
from components.train_model.worker.limits import PhaseLimits
from components.train_model.worker.memory import oom_kills
from components.train_model.worker.metrics import WorkerMetrics
from components.train_model.worker.status import Status
from components.train_model.worker.trainer_process import TrainerProcess

# A spare costs a few seconds of CPU to start: not while the trainer itself is starting.
SPARE_DELAY_SECS = 10.0
# Phases in which a trainer has made nothing yet that would have to be committed.
_BEFORE_STEPS = ("imports", "waiting", "data", "restore", "ready", "rendezvous", "build")


class Attendance:
    """Looks after one trainer in one incarnation.

    Attributes:
        beat: the trainer's newest.
        last_progress: when the trainer last showed progress, seconds since the epoch; 0.0: never.
    """

    def __init__(
        self,
        trainer: TrainerProcess,
        decision: Decision,
        options: TrainOptions,
        *,
        limits: PhaseLimits,
        metrics: WorkerMetrics,
        terminated: threading.Event,
        over: threading.Event,
    ) -> None:
        """Begin.

        Args:
            trainer: has its assignment.
            decision: of the incarnation.
            options: of the run.
            limits: of the phases, of all trainers of this worker.
            metrics: of this worker.
            terminated: set when this worker is told to stop.
            over: set when the leader says that the incarnation has ended.
        """
        self._trainer = trainer
        self._decision = decision
        self._options = options
        self._limits = limits
        self._metrics = metrics
        self._terminated = terminated
        self._over = over
        self._began = time.monotonic()
        self._oom_kills = oom_kills()
        self._told_to_stop = 0.0
        self._last_step, self._last_beat = -1, 0.0
        self.beat: Beat = trainer.beat()
        self.last_progress = 0.0

    @property
    def age(self) -> float:
        """Seconds since this began."""
        return time.monotonic() - self._began

    @property
    def wants_spare(self) -> bool:
        """Whether the trainer needs the processor less than a spare would."""
        return self.beat.phase == "step" and self.age > SPARE_DELAY_SECS

    def look(self) -> Ending | None:
        """Look once; how the trainer ended or must be ended, None if it goes on."""
        self.beat = beat = self._trainer.beat()
        self._metrics.update(beat, max(self._decision.restore_step, 0))
        code = self._trainer.exit_code()
        if code is not None:
            return ended(self._trainer, code, out_of_memory=oom_kills() > self._oom_kills)
        self._note_progress(beat)
        if self._terminated.is_set():
            ending = self._stopping(beat)
            if ending is not None:
                return ending
        # A spare has been waiting for long before it was told what to do.
        age = min(beat.age, self.age)
        if self._over.is_set() and beat.phase != "barrier":
            return given_up(self._trainer, beat, age, self._options.heartbeat_secs)
        limit = self._limits.limit_of(beat.phase)
        return stalled(self._trainer, beat, age, limit) if age > limit else None

    def _note_progress(self, beat: Beat) -> None:
        if beat.step == self._last_step:
            return
        if self._last_step >= 0 and beat.phase == "step" and self._last_beat:
            self._limits.observe_call(beat.time - self._last_beat)
        self._last_step, self._last_beat = beat.step, beat.time
        self.last_progress = time.time() - beat.age

    def _stopping(self, beat: Beat) -> Ending | None:
        """Ask the trainer for its last checkpoint and leave it the time for one."""
        now = time.monotonic()
        if not self._told_to_stop:
            self._told_to_stop = now
            self._trainer.heartbeat.request_stop()
        before_first = beat.phase in _BEFORE_STEPS
        if before_first or now - self._told_to_stop > self._options.termination_secs:
            code = EXIT_TERMINATED if before_first else EXIT_RETRYABLE
            return Ending(code=code, cause="", reason="terminated")
        return None

    @property
    def rate(self) -> float:
        """Steps a second since the restart; 0 before the first."""
        done = self.beat.step - max(self._decision.restore_step, 0)
        return done / self.beat.total if self.beat.total and done > 0 else 0.0

    def status(self) -> Status:
        """What storage is told about the run."""
        beat = self.beat
        return Status(
            incarnation=self._decision.incarnation,
            phase=beat.phase,
            step=beat.step,
            target=beat.target,
            committed=beat.committed,
            loss=beat.loss if math.isfinite(beat.loss) else 0.0,
            steps_per_second=round(self.rate, 3),
        )


class ProgressLog:
    """A line about a run's progress, every so often."""

    def __init__(self, log: "logging.LoggerAdapter[logging.Logger]", seconds: float) -> None:
        self._log = log
        self._seconds = seconds
        self._last = time.monotonic()

    def tell(self, attendance: Attendance) -> None:
        """Log a line if one is due."""
        beat, now = attendance.beat, time.monotonic()
        if beat.phase != "step" or now - self._last < self._seconds:
            return
        self._last = now
        rate = attendance.rate
        self._log.info(
            "step %d/%d, %.1f steps/s, loss %.4f, %.0f s left",
            *(beat.step, beat.target, rate, beat.loss),
            (beat.target - beat.step) / rate if rate else 0.0,
            extra={"step": beat.step, "event": "progress"},
        )
