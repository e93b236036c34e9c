"""What every reader offers: rows in batches, and the rows that could not be read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from components.contracts.dataset import Feature
from components.contracts.errors import InputError, RelayError

# Longer values are cut in messages and in the reject file.
MAX_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a row was rejected.

    Attributes:
        source: name of the file.
        row: number of the row in it, from 1; headers and blank lines do not count.
        column: empty where the row as a whole is at fault.
        value: as found, shortened.
        reason: a full clause, with the remedy where there is one.
    """

    source: str
    row: int
    column: str
    value: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """A line of the reject file."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of one source: `start` and `stop` in the reader's units (bytes, row groups, files)."""

    source: int
    start: int
    stop: int


@dataclass(kw_only=True)
class Rows:
    """A batch of rows.

    Attributes:
        columns: arrays of one length by column name.
        num_rows: rows read, faulty ones included.
        numbers: of the rows in `columns` among those read, from 0, rising.
        faults: of the other rows, numbered likewise from 0.
        is_text: whether the columns are binary text that has no type yet.
        images: columns that hold encoded images.
        places: by column, where its first value of the batch stands, for messages.
    """

    columns: dict[str, pa.Array]
    num_rows: int
    numbers: np.ndarray[Any, Any]
    faults: list[Fault] = field(default_factory=list)
    is_text: bool = False
    images: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)

    def without(self, bad: np.ndarray[Any, Any], faults: list[Fault]) -> "Rows":
        """The same rows but those where the mask `bad` is set, for the reasons in `faults`."""
        keep = ~bad
        mask = pa.array(keep)
        return Rows(
            columns={name: array.filter(mask) for name, array in self.columns.items()},
            num_rows=self.num_rows,
            numbers=self.numbers[keep],
            faults=[*self.faults, *faults],
            is_text=self.is_text,
            images=self.images,
            places=self.places,
        )


class MismatchError(RelayError):
    """Values contradict a schema that was inferred from a sample.

    It has to be inferred from all rows.
    """


class UndecidedError(InputError):
    """The values seen give no schema; more of them may."""


class Reader(Protocol):
    """One source of rows."""

    @property
    def name(self) -> str:
        """Name of the source in messages."""

    def source_of(self, row: int) -> str:
        """Name for messages of the file that holds row `row`, counted from 0 over the source."""

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        """Cut the source into at most `num_parts` ranges (start, stop) of similar size.

        None of them empty.
        """

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        """A few rows from the beginning of a range.

        Untyped as `read` gives them without features.
        """

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        """Read the rows of a range in batches of bounded size.

        Args:
            start: first unit of the range.
            stop: unit past the range.
            features: columns to read, by name, with the type to read them as; None: all, text as
                binary.
            strict: whether a value that does not have its column's type rejects the row.

        Raises:
            MismatchError: not strict, and a value does not have its column's type.
            InputError: the source is broken as a whole.
        """


def place_of(fault: Fault) -> str:
    """A fault in one line: where, what, and why."""
    subject = f"{fault.column}={fault.value!r}" if fault.column else f"{fault.value!r}"
    return f"{fault.source} row {fault.row}: {subject} {fault.reason}"


def shown(value: Any) -> str:
    """A value as it stands in messages and the reject file."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
