"""A table with a column of images, or of paths to them relative to the table."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.options import unknown_column
from components.make_tfrecords.readers.base import Fault, Reader, Rows, shown

BATCH_ROWS = 64


class ImageColumnReader:
    """Reads a table through its own reader, and the images row by row."""

    def __init__(self, table: Reader, column: str, folder: Path) -> None:
        self.name = table.name
        self._table = table
        self._column = column
        self._folder = folder

    def source_of(self, row: int) -> str:
        return self._table.source_of(row)

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        return self._table.split(num_parts)

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        for rows in self._table.sample(start, stop):
            yield from self._with_images(rows)
            return

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        if features is not None:  # the table itself knows paths, or bytes, but no images
            path = Feature(name=self._column, kind="string", source_type="string")
            features = {**features, self._column: path}
        for rows in self._table.read(start, stop, features, strict=strict):
            yield from self._with_images(rows)

    def _with_images(self, rows: Rows) -> Iterator[Rows]:
        """The rows in pieces that hold few images each.

        What is not in a piece is counted in the last.
        """
        if self._column not in rows.columns:
            raise InputError(unknown_column("image_column", self._column, list(rows.columns)))
        num_kept = len(rows.numbers)
        for start in range(0, num_kept, BATCH_ROWS):
            stop = min(start + BATCH_ROWS, num_kept)
            is_last = stop == num_kept
            piece = Rows(
                columns={n: a.slice(start, stop - start) for n, a in rows.columns.items()},
                num_rows=rows.num_rows if is_last else 0,
                numbers=rows.numbers[start:stop],
                faults=rows.faults if is_last else [],
                is_text=rows.is_text,
                images=(self._column,),
            )
            yield self._loaded(piece)
        if not num_kept:
            yield rows

    def _loaded(self, rows: Rows) -> Rows:
        images: list[bytes | None] = []
        bad = np.zeros(len(rows.numbers), bool)
        faults = []
        column = rows.columns[self._column]
        is_path = rows.is_text or pa.types.is_string(column.type)
        for index, value in enumerate(column.to_pylist()):
            try:
                images.append(self._read(value) if is_path and value else value)
            except OSError as error:
                images.append(None)
                bad[index] = True
                reason = f"cannot be read: {error.strerror or error}"
                faults.append(
                    Fault(
                        source="",
                        row=int(rows.numbers[index]),
                        column=self._column,
                        value=shown(value),
                        reason=reason,
                    )
                )
        rows.columns[self._column] = pa.array(images, pa.binary())
        return rows.without(bad, faults) if faults else rows

    def _read(self, path: str | bytes) -> bytes:
        text = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path
        return (self._folder / text).read_bytes()
