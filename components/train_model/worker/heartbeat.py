"""Progress of a trainer in memory shared with its supervisor: no system call per step.

One page of a file, mapped by both. The trainer writes phase, step and time; the supervisor writes
that all peers are ready, and the request to stop. Each field has one writer and lies within one
aligned machine word, so neither side ever sees half of a value.
"""

import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from components.train_model.worker.ledger import BUCKETS

PHASES: Final = (
    *("imports", "waiting", "data", "restore", "ready", "rendezvous", "build", "first_step"),
    *("step", "evaluation", "checkpoint", "barrier", "done"),
)

_PHASE, _STEP, _BEAT, _COMMITTED, _STOP, _LOSS, _DATA_WAIT, _CHECKPOINT_WAIT, _TOTAL, _TARGET = (
    offset * 8 for offset in range(10)
)
_GO, _BUCKETS = 80, 88
_SIZE = mmap.PAGESIZE


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A trainer's state as last recorded.

    Attributes:
        phase: one of PHASES.
        step: completed steps.
        age: seconds since the trainer last recorded anything.
        time: when that was, in seconds of the monotonic clock.
        committed: step of the newest committed checkpoint, -1 before the first.
        loss: mean loss of the last call.
        data_wait: seconds waited for data so far in this process.
        checkpoint_wait: seconds training stood still for checkpoints so far in this process.
        total: seconds since the first step of this process began.
        target: steps after which training ends.
        goodput: seconds of the run by bucket of the ledger.
    """

    phase: str
    step: int
    age: float
    time: float
    committed: int
    loss: float
    data_wait: float
    checkpoint_wait: float
    total: float
    target: int
    goodput: Mapping[str, float]


class Heartbeat:
    """The mapped page; made by the supervisor, opened by the trainer."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                # Not only its size: on a full disk a page without a block is a SIGBUS later.
                try:
                    os.posix_fallocate(descriptor, 0, _SIZE)
                except OSError as error:
                    error.filename = str(path)
                    raise
            self._page = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        if create:
            self._write("q", _COMMITTED, -1)
            self.beat("imports")

    def beat(self, phase: str, step: int | None = None) -> None:
        """Record that the trainer is alive in `phase`, having completed `step` steps."""
        if step is not None:
            self._write("q", _STEP, step)
        self._write("q", _PHASE, PHASES.index(phase))
        self._write("d", _BEAT, time.monotonic())

    def record(
        self,
        *,
        loss: float,
        data_wait: float,
        checkpoint_wait: float,
        total: float,
        target: int,
        goodput: Mapping[str, float],
    ) -> None:
        """Record the figures that metrics and progress lines show."""
        for index, bucket in enumerate(BUCKETS):
            self._write("d", _BUCKETS + 8 * index, goodput[bucket])
        self._write("d", _LOSS, loss)
        self._write("d", _DATA_WAIT, data_wait)
        self._write("d", _CHECKPOINT_WAIT, checkpoint_wait)
        self._write("d", _TOTAL, total)
        self._write("q", _TARGET, target)

    def committed(self, step: int) -> None:
        """Record the step of the newest committed checkpoint."""
        self._write("q", _COMMITTED, step)

    def request_stop(self) -> None:
        """Ask the trainer to agree on a step with its peers, commit it and leave."""
        self._write("q", _STOP, 1)

    def release(self) -> None:
        """Tell the trainer that all its peers are ready to meet."""
        self._write("q", _GO, 1)

    @property
    def released(self) -> bool:
        """Whether the supervisor has said that all peers are ready."""
        return self._read("q", _GO) != 0

    @property
    def stop_requested(self) -> bool:
        """Whether the supervisor has asked for a stop."""
        return self._read("q", _STOP) != 0

    def read(self) -> Beat:
        """The trainer's state now."""
        beat = float(self._read("d", _BEAT))
        return Beat(
            phase=PHASES[int(self._read("q", _PHASE))],
            step=int(self._read("q", _STEP)),
            age=time.monotonic() - beat,
            time=beat,
            committed=int(self._read("q", _COMMITTED)),
            loss=float(self._read("d", _LOSS)),
            data_wait=float(self._read("d", _DATA_WAIT)),
            checkpoint_wait=float(self._read("d", _CHECKPOINT_WAIT)),
            total=float(self._read("d", _TOTAL)),
            target=int(self._read("q", _TARGET)),
            goodput={
                bucket: self._read("d", _BUCKETS + 8 * index)
                for index, bucket in enumerate(BUCKETS)
            },
        )

    def _write(self, kind: str, offset: int, value: float) -> None:
        struct.pack_into(kind, self._page, offset, value)

    def _read(self, kind: str, offset: int) -> float:
        return float(struct.unpack_from(kind, self._page, offset)[0])
