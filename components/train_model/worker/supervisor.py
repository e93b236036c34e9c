"""The supervisor, PID 1 of a worker: owns its trainer's life and imports no TensorFlow."""

import hashlib
import os
import secrets
import signal
import socket
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from components.contracts.errors import (
    EXIT_FENCED,
    EXIT_OK,
    EXIT_TERMINATED,
    FencedError,
    PermanentError,
    RetryableError,
    is_retryable,
)
from components.contracts.training_run import TrainingRun, read_completion
from components.storage.errors import StoreUnavailableError
from components.storage.open import open_store
from components.storage.retry import Deadlines
from components.train_model.options import TrainOptions
from components.train_model.worker.agreement import Decision, Join, Leader, Member
from components.train_model.worker.assignment import Assignment
from components.train_model.worker.attendance import Attendance, ProgressLog
from components.train_model.worker.cluster import Cluster
from components.train_model.worker.ending import Ending, error_of
from components.train_model.worker.fencing import read_incarnation
from components.train_model.worker.lease import LeaseWatch
from components.train_model.worker.limits import PhaseLimits
from components.train_model.worker.local_tier import LocalTier
from components.train_model.worker.logs import WorkerLog
from components.train_model.worker.metrics import WorkerMetrics
from components.train_model.worker.round import decide
from components.train_model.worker.server import start_server
from components.train_model.worker.status import Status, StatusWriter
from components.train_model.worker.trainer_process import TrainerProcess

TICK_SECS = 0.05
MEET_SECS = 0.02
RETRY_SECS = 2.0
# How often a supervisor that waits for a round looks into storage whether there will be none.
LOOK_SECS = 5.0


class Supervisor:
    """Joins rounds, runs one trainer in each, leaves with the exit code that the run has earned."""

    def __init__(
        self,
        options: TrainOptions,
        cluster: Cluster,
        *,
        run: TrainingRun,
        run_uri: str,
        token: str,
        folder: Path,
        listening: socket.socket,
        lease_secs: float = 0.0,
    ) -> None:
        """Prepare to supervise.

        Args:
            options: of the run.
            cluster: this worker among its peers.
            run: what is trained.
            run_uri: where it lies.
            token: shared by the job's workers.
            folder: this worker's own, for heartbeat files, shards and the local tier.
            listening: socket of the supervisor's port.
            lease_secs: end when no launcher has renewed its lease for so long; 0: there is none.
        """
        self._listening = listening
        self._lease_secs = lease_secs
        self._lease_message = ""
        self._status = Status()
        self._options = options
        self._cluster = cluster
        self._run_uri = run_uri
        self._fingerprint = run.fingerprint
        self._started = run.created
        self._token = token
        self._job = hashlib.sha256(token.encode()).hexdigest()[:16]
        self._folder = folder
        # Short, so that the loop turns on while storage is away: it tries again and again.
        self._store = open_store(run_uri, deadlines=Deadlines(total_secs=20.0, attempt_secs=10.0))
        self._tier = LocalTier(folder / "checkpoints", run.fingerprint)
        self._log = WorkerLog(cluster.index)
        self._metrics = WorkerMetrics(cluster.index, options.batch_size)
        self._limits = PhaseLimits(options)
        self._instance = secrets.token_hex(8)
        self._terminated = threading.Event()
        self._trainer: TrainerProcess | None = None
        self._spare: TrainerProcess | None = None
        self._num_started = 0
        self._last_tick = self._last_look = time.monotonic()
        self._last_progress = 0.0
        self._trouble_since = 0.0

    def run(self) -> int:
        """Supervise until the run is complete, has failed, or this worker is told to stop."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        self._tier.clear_foreign()
        server = self._serve()
        member = Member(self._cluster.supervisors[0], self._token)
        followers = self._start_followers()
        try:
            code = self._rounds(member)
            if code != EXIT_OK and self._lease_message:
                raise PermanentError(self._lease_message)
            return code
        finally:
            for follower in followers:
                follower.end()
            for process in (self._trainer, self._spare):
                if process is not None:
                    process.kill()
            server.shutdown()
            server.server_close()

    def _start_followers(self) -> list[LeaseWatch | StatusWriter]:
        """Threads that only a launcher far away needs."""
        if not self._lease_secs:
            return []
        followers: list[LeaseWatch | StatusWriter] = [
            LeaseWatch(self._store, self._lease_secs, self._on_lease_lost)
        ]
        if self._cluster.index == 0:
            followers.append(StatusWriter(self._store, lambda: self._status))
        for follower in followers:
            follower.start()
        return followers

    def _on_lease_lost(self, message: str) -> None:
        self._log.warning("%s", message, extra={"event": "lease"})
        self._lease_message = message
        self._terminated.set()

    def _serve(self) -> ThreadingHTTPServer:
        leader = None
        if self._cluster.index == 0:
            leader = Leader(
                self._cluster.size,
                lambda joins: decide(
                    self._store,
                    joins,
                    job=self._job,
                    max_restarts=self._options.max_restarts,
                    scratch=self._folder,
                ),
            )
        return start_server(
            self._listening,
            token=self._token,
            leader=leader,
            tier=self._tier,
            health=self._health,
            metrics=self._exposition,
        )

    def _rounds(self, member: Member) -> int:
        seen, cause = 0, ""
        while True:
            try:
                if read_completion(self._store) is not None:
                    self._log.info("the run is complete")
                    return EXIT_OK
                if self._is_fenced(seen):
                    text = f"another launch of the run at {self._run_uri} has taken it over"
                    raise FencedError(text)
            except StoreUnavailableError as error:
                self._wait_or_fail(Decision(error=str(error), exit_code=error.exit_code))
                continue
            decision = self._join(member, seen, cause)
            if decision is None:
                if self._terminated.is_set():
                    return EXIT_TERMINATED
                continue
            if decision.complete:
                return EXIT_OK
            if decision.error:
                self._wait_or_fail(decision)
                continue
            seen, self._trouble_since = decision.incarnation, 0.0
            ending = self._run_trainer(member, decision)
            if self._terminated.is_set() and is_retryable(ending.code):
                return ending.code
            if not is_retryable(ending.code):
                if ending.code != EXIT_OK:
                    raise error_of(ending)
                if read_completion(open_store(self._run_uri)) is None:
                    raise PermanentError(
                        "the trainer ended with 0 before the run was complete. Does the model "
                        "module, or what it imports, end the process?"
                    )
                return EXIT_OK
            if ending.code == EXIT_FENCED:
                raise error_of(ending)
            cause = ending.cause
            self._metrics.restarted(ending.reason)

    def _wait_or_fail(self, decision: Decision) -> None:
        """Wait before the next round if the leader's trouble may pass, else raise it."""
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        limit = self._options.limit_of("agreement")
        passing = is_retryable(decision.exit_code) and decision.exit_code != EXIT_FENCED
        if not passing or now - self._trouble_since > limit:
            raise error_of(Ending(code=decision.exit_code, cause=decision.error, reason="error"))
        self._log.warning("no round yet: %s", decision.error)
        self._terminated.wait(RETRY_SECS)

    def _join(self, member: Member, seen: int, cause: str) -> Decision | None:
        join = Join(
            worker=self._cluster.index,
            instance=self._instance,
            seen=seen,
            address=self._trainer_address(),
            local_steps=tuple(self._tier.steps()) if self._options.local_tier else (),
            cause=cause,
        )
        if self._spare is None:
            self._spare = self._start_trainer()  # its imports run while the others are waited for
        return member.join(
            join,
            limit=self._options.limit_of("agreement"),
            stopped=lambda: self._must_not_wait(seen),
        )

    def _must_not_wait(self, seen: int) -> bool:
        """Whether there is no round to wait for: told to stop, complete, or taken over."""
        self._last_tick = now = time.monotonic()
        if self._terminated.is_set():
            return True
        if now - self._last_look < LOOK_SECS:
            return False
        self._last_look = now
        try:
            return read_completion(self._store) is not None or self._is_fenced(seen)
        except RetryableError:
            return False

    def _is_fenced(self, seen: int) -> bool:
        """Whether another launch has gone on since this one's incarnation `seen`."""
        if not seen:
            return False
        newest, _ = read_incarnation(self._store)
        return newest.number > seen and newest.job != self._job

    def _trainer_address(self) -> str:
        host, _, port = self._cluster.trainers[self._cluster.index].rpartition(":")
        if host.startswith("127."):  # on one machine a port may still be held by a killed trainer
            with socket.socket() as probe:
                probe.bind((host, 0))
                return f"{host}:{probe.getsockname()[1]}"
        return f"{os.environ.get('RELAY_POD_IP', host)}:{port}"

    def _start_trainer(self) -> TrainerProcess:
        self._num_started += 1
        name = f"trainer-{self._num_started}"
        return TrainerProcess(self._folder, name, dict(self._options.nccl))

    def _run_trainer(self, member: Member, decision: Decision) -> Ending:
        trainer = self._spare if self._spare and self._spare.exit_code() is None else None
        self._spare = None
        self._trainer = trainer = trainer or self._start_trainer()
        self._log.set(incarnation=decision.incarnation)
        self._metrics.incarnation(decision.incarnation)
        self._log.info(
            "incarnation %d starts at step %d",
            decision.incarnation,
            max(decision.restore_step, 0),
            extra={"event": "start"},
        )
        trainer.assign(self._assignment(decision))
        # One event an incarnation: a late answer about the one before must not end this one.
        over = threading.Event()
        threading.Thread(
            target=self._watch, args=(member, decision.incarnation, over), daemon=True
        ).start()
        threading.Thread(
            target=self._meet, args=(member, decision.incarnation, trainer, over), daemon=True
        ).start()
        ending = self._attend(trainer, decision, over)
        over.set()
        trainer.kill()
        self._trainer = None
        if ending.cause:
            self._log.warning("%s", ending.cause, extra={"event": ending.reason})
        return ending

    def _assignment(self, decision: Decision) -> Assignment:
        holder = decision.holder
        return Assignment(
            options=vars(self._options),
            run_uri=self._run_uri,
            fingerprint=self._fingerprint,
            worker=self._cluster.index,
            members=decision.members if self._cluster.size > 1 else (),
            incarnation=decision.incarnation,
            restore_step=decision.restore_step,
            holder=self._cluster.supervisors[holder] if holder >= 0 else "",
            token=self._token,
            num_restarts=decision.num_restarts,
            tier=str(self._folder / "checkpoints") if self._options.local_tier else "",
            # Workers on one machine share what they download.
            cache=str(self._folder.parent / "shards"),
            started=self._started,
            last_progress=self._last_progress,
            decided=time.time(),
        )

    @staticmethod
    def _watch(member: Member, incarnation: int, over: threading.Event) -> None:
        """Set `over` as soon as the leader says that this incarnation has ended."""
        while not over.is_set():
            runs = member.still_runs(incarnation)
            if runs is False:
                over.set()
            elif runs is None:
                time.sleep(0.5)

    def _meet(
        self, member: Member, incarnation: int, trainer: TrainerProcess, over: threading.Event
    ) -> None:
        """Let the trainer go to its rendezvous once the trainers of all workers are ready."""
        while not over.wait(MEET_SECS):
            if trainer.beat().phase == "ready" and member.ready(incarnation, self._cluster.index):
                trainer.heartbeat.release()
                return

    def _attend(self, trainer: TrainerProcess, decision: Decision, over: threading.Event) -> Ending:
        """Look after a trainer until it has ended or must be ended."""
        attendance = Attendance(
            *(trainer, decision, self._options),
            limits=self._limits,
            metrics=self._metrics,
            terminated=self._terminated,
            over=over,
        )
        progress = ProgressLog(self._log, self._options.log_secs)
        while True:
            time.sleep(TICK_SECS)
            self._last_tick = time.monotonic()
            ending = attendance.look()
            self._status = attendance.status()
            self._last_progress = attendance.last_progress or self._last_progress
            if ending is not None:
                return ending
            if self._cluster.index == 0:
                progress.tell(attendance)
            if self._options.warm_spare and self._spare is None and attendance.wants_spare:
                self._spare = self._start_trainer()

    def _health(self) -> str:
        """For the liveness probe: only a supervisor that no longer turns its loop is unhealthy."""
        age = time.monotonic() - self._last_tick
        return f"the supervisor's loop stands still for {age:.0f} s" if age > 60 else ""

    def _exposition(self) -> bytes:
        return self._metrics.exposition()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._terminated.set()
