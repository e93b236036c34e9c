"""Parquet: rows in batches of bounded size, structs flattened to `column.field`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.readers.base import Rows

BATCH_ROWS = 8192
SAMPLE_ROWS = 1024


class ParquetReader:
    """A local file; units are rows."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        try:
            with pa.parquet.ParquetFile(path) as file:
                metadata = file.metadata
                self._schema = file.schema_arrow
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{name} is not a readable Parquet file: {error}") from error
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self._starts = np.concatenate([np.zeros(1, int), np.cumsum(sizes, dtype=int)])

    def source_of(self, row: int) -> str:
        return self.name

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        num_rows = int(self._starts[-1])
        edges = {0, num_rows}
        for target in np.linspace(0, num_rows, num_parts + 1)[1:-1].astype(int):
            nearest = int(self._starts[np.abs(self._starts - target).argmin()])
            # A row group that several parts share is read by each of them.
            is_near = abs(nearest - target) * num_parts <= num_rows / 2
            edges.add(nearest if is_near else int(target))
        ordered = sorted(edges)
        return list(zip(ordered[:-1], ordered[1:], strict=True))

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        yield from self.read(start, min(stop, start + SAMPLE_ROWS), None)

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        wanted = None if features is None else list(features)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        position = int(self._starts[first])
        with pa.parquet.ParquetFile(self._path) as file:
            for batch in self._batches(file, range(first, last), wanted):
                begin, end = max(start - position, 0), min(stop - position, batch.num_rows)
                position += batch.num_rows
                if begin < end:
                    yield _rows(batch.slice(begin, end - begin), wanted)

    def _batches(
        self, file: "pa.parquet.ParquetFile", groups: range, wanted: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        roots = None
        if wanted is not None:
            roots = [f.name for f in self._schema if any(_is_within(w, f.name) for w in wanted)]
        try:
            yield from file.iter_batches(BATCH_ROWS, list(groups), roots, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{self.name} is damaged: {error}. Write it again") from error


def _is_within(name: str, root: str) -> bool:
    return name == root or name.startswith(root + ".")


def _rows(batch: pa.RecordBatch, wanted: list[str] | None) -> Rows:
    columns = flattened(batch)
    if wanted is not None:
        columns = {name: columns[name] for name in wanted}
    return Rows(columns=columns, num_rows=batch.num_rows, numbers=np.arange(batch.num_rows))


def flattened(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Columns by name, the fields of structs in place of the structs.

    A missing struct has missing fields.
    """
    columns: dict[str, pa.Array] = {}
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_struct(field.type):
            names = [f"{field.name}.{child.name}" for child in field.type]
            inner = pa.RecordBatch.from_arrays(array.flatten(), names)
            columns |= flattened(inner)
        else:
            columns[field.name] = array
    return columns
