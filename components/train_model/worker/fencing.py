"""Fencing: only the newest incarnation of a run commits, whatever still lives beyond a partition.

`incarnation.json` in the run's storage holds the newest incarnation; it is taken, and each commit
is announced, by compare-and-set on its generation. A commit is: announce the step, then create the
manifest. A new incarnation that takes over while a step is announced but not committed occupies its
manifest with a tombstone that only later incarnations may replace, so the old chief's creation
fails: one of the two has it, never both. Their state files have different names.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.contracts.checkpoint import MANIFEST_NAME, folder_of, tombstone
from components.contracts.errors import FencedError
from components.storage.base import Store
from components.storage.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError

INCARNATION_NAME = "incarnation.json"


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """What `incarnation.json` says.

    Attributes:
        number: 1 for the first start of the run.
        restore_step: where it started, -1 for the beginning.
        without_progress: incarnations in a row, this one included, with the same restore step.
        causes: why the previous ones of that row ended.
        committing: step whose commit was announced last, -1 for none.
        taken: when, in seconds since the epoch.
        job: who took it: all workers of one launch. A new launch has a new budget.
        restarts: the newest ones, as a Completion lists them.
    """

    number: int = 0
    restore_step: int = -1
    without_progress: int = 0
    causes: tuple[str, ...] = field(default=())
    committing: int = -1
    taken: float = 0.0
    job: str = ""
    restarts: tuple[Mapping[str, Any], ...] = field(default=())


def read_incarnation(store: Store) -> tuple[Incarnation, str]:
    """The newest incarnation and the generation of its object ("" before the first)."""
    try:
        data, generation = store.read_versioned(INCARNATION_NAME)
    except ObjectNotFoundError:
        return Incarnation(), ""
    values = json.loads(data)
    lists = {name: tuple(values.get(name, ())) for name in ("causes", "restarts")}
    return Incarnation(**{**values, **lists}), generation


def take(store: Store, previous: str, incarnation: Incarnation) -> None:
    """Become the newest incarnation, if the object still has the generation `previous`.

    Raises:
        ConflictError: the one before has announced a commit in between: decide again.
        FencedError: somebody else took it in between.
    """
    data = json.dumps(dataclasses.asdict(incarnation)).encode()
    try:
        if previous:
            store.replace(INCARNATION_NAME, data, generation=previous)
        else:
            store.create(INCARNATION_NAME, data)
    except (ConflictError, AlreadyExistsError) as error:
        current, _ = read_incarnation(store)
        if current.number < incarnation.number:
            raise ConflictError(f"{store.uri_of(INCARNATION_NAME)} changed") from error
        raise FencedError(
            f"another incarnation of the run at {store.uri} started at the same moment"
        ) from error


def bury_announced(store: Store, previous: Incarnation) -> None:
    """Make sure that a commit which `previous` announced has either happened or never will.

    `previous` must still be the newest incarnation: what it announces later than the caller has
    read is not buried, but then the caller cannot take over either.
    """
    if previous.committing < 0:
        return
    name = f"{folder_of(previous.committing)}/{MANIFEST_NAME}"
    try:
        store.create(name, tombstone(previous.number))
        return
    except AlreadyExistsError:
        data, generation = store.read_versioned(name)
    with contextlib.suppress(ValueError, ConflictError):  # a damaged manifest, or a commit just now
        if 0 < json.loads(data).get("buried", 0) < previous.number:
            store.replace(name, tombstone(previous.number), generation=generation)


class Fence:
    """A chief's right to commit."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._number = number

    def announce(self, step: int) -> None:
        """Declare that `step` is about to be committed.

        Raises:
            FencedError: a newer incarnation exists.
        """
        current, generation = read_incarnation(self._store)
        if current.number == self._number:
            announced = dataclasses.replace(current, committing=step)
            data = json.dumps(dataclasses.asdict(announced)).encode()
            try:
                self._store.replace(INCARNATION_NAME, data, generation=generation)
                return
            except ConflictError:
                current, _ = read_incarnation(self._store)
        raise FencedError(
            f"incarnation {self._number} of the run at {self._store.uri} was replaced by "
            f"incarnation {current.number}; nothing more is committed by this one"
        )
