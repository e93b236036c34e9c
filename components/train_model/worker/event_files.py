"""TensorBoard's event files: the training curve beside the checkpoints, written by the chief.

Each file holds the scalars since the one before and is named by its last step. A file is whole from
the start and never changes (TensorBoard keeps open what it reads), and a resumed run removes what
lies beyond its checkpoint, so no step is ever shown twice.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from components.contracts.errors import RetryableError
from components.storage.base import Store

FOLDER = "tensorboard"
_PREFIX = f"{FOLDER}/events.out.tfevents."
_NOT_SCALARS = ("step", "steps", "time")

log = logging.getLogger("relay.worker")


class EventFiles:
    """The event files of one run."""

    def __init__(self, store: Store, restored: int) -> None:
        """Remove what lies beyond the step `restored`. `store` is opened at the run's uri."""
        self._store = store
        self._written = 0
        try:
            for found in list(store.list(_PREFIX)):
                step = int(found.name.removeprefix(_PREFIX).partition(".")[0])
                if step > restored:
                    store.delete(found.name)
                else:
                    self._written = max(self._written, step)
        except RetryableError as error:
            self._written = restored
            log.warning("event files beyond step %d were not removed: %s", restored, error)

    def write(self, records: Iterable[Mapping[str, float]]) -> None:
        """Write the records that are new. Trouble here is only logged: the history has them too."""
        new = [record for record in records if record["step"] > self._written]
        if not new:
            return
        last = int(max(record["step"] for record in new))
        try:
            self._store.write(f"{_PREFIX}{last:010d}.relay", _file_of(new))
            self._written = last
        except (RetryableError, OSError) as error:
            log.warning("no event file for step %d: %s", last, error)


def _file_of(records: Iterable[Mapping[str, float]]) -> bytes:
    records = list(records)
    head = tf.compat.v1.Event(wall_time=records[0]["time"], file_version="brain.Event:2")
    # In memory: the disk may be full.
    with os.fdopen(os.memfd_create("events"), "rb") as file:
        with tf.io.TFRecordWriter(f"/proc/self/fd/{file.fileno()}") as writer:
            for event in (head, *map(_event_of, records)):
                writer.write(event.SerializeToString())
        return file.read()


def _event_of(record: Mapping[str, float]) -> Any:
    values = [
        tf.compat.v1.Summary.Value(tag=_tag_of(name), simple_value=value)
        for name, value in record.items()
        if name not in _NOT_SCALARS
    ]
    return tf.compat.v1.Event(
        wall_time=record["time"],
        step=int(record["step"]),
        summary=tf.compat.v1.Summary(value=values),
    )


def _tag_of(name: str) -> str:
    kind = "validation" if name.startswith("val_") else "train"
    return f"{kind}/{name.removeprefix('val_')}"
