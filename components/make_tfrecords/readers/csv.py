"""CSV and TSV: record-aligned blocks of the file, each parsed by pyarrow in one piece."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers import blocks
from components.make_tfrecords.readers.base import Fault, MismatchError, Rows, shown
from components.make_tfrecords.readers.boundaries import (
    FIELD_START,
    IN_QUOTES,
    has_leading_zero,
    scan_records,
)
from components.make_tfrecords.readers.text import FALSE, TRUE, convert_text
from components.make_tfrecords.treatment import is_text, type_named

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DELIMITERS = ",\t;|"


class CsvReader:
    """A local, uncompressed UTF-8 file; units are bytes."""

    def __init__(self, name: str, path: Path, options: ConvertOptions) -> None:
        self.name = name
        self._path = path
        self._options = options
        with path.open("rb") as file:
            head = file.read(1 << 20)
        self._size = path.stat().st_size
        self._start, self._delimiter, self._names = _read_header(name, head, options.delimiter)
        self._quoted: bool | None = None

    def source_of(self, row: int) -> str:
        return self.name

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        cuts = {self._start, self._size}
        for target in np.linspace(self._start, self._size, num_parts + 1)[1:-1].astype(int):
            cuts.add(self._record_end_after(int(target)))
        edges = sorted(cuts)
        return list(zip(edges[:-1], edges[1:], strict=True))

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        for block in self._blocks(start, stop, blocks.SAMPLE_BYTES):
            yield self._read_text(block, self._names)
            return

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        for block in self._blocks(start, stop, blocks.BLOCK_BYTES):
            if features is None:
                yield self._read_text(block, self._names)
            else:
                yield self._read_typed(block, features, strict)

    def _blocks(self, start: int, stop: int, size: int) -> Iterator[bytes]:
        for block in blocks.blocks(self._path, start, stop, size, self._last_record_end):
            if b'"' in block and self._scan(block, FIELD_START, 0)[0] == IN_QUOTES:
                raise InputError(self._unclosed(block))
            yield block

    def _last_record_end(self, data: bytes) -> int:
        if b'"' not in data:
            return blocks.line_end(data)
        return max(self._scan(data, FIELD_START, 0)[2], 0)

    def _unclosed(self, block: bytes) -> str:
        record = block[self._last_record_end(block) :]
        return (
            f"{self.name}: a quote is not closed in the record that begins with "
            f"{shown(record[:60])!r}. Close it there, or double it if it belongs to the text"
        )

    def _scan(self, data: bytes, state: int, target: int) -> tuple[int, int, int, int]:
        characters = np.frombuffer(data, np.uint8)
        return tuple(scan_records(characters, state, ord(self._delimiter), target))

    def _record_end_after(self, target: int) -> int:
        """Position past the record that holds the byte at `target`."""
        if self._quoted is None:
            self._quoted = _contains_quote(self._path)
        if not self._quoted:
            return blocks.line_end_after(self._path, target, self._size)
        position, state = self._start, FIELD_START
        with self._path.open("rb") as file:
            file.seek(position)
            while piece := file.read(blocks.BLOCK_BYTES):
                state, end, _, _ = self._scan(piece, state, target - position)
                if end >= 0:
                    return position + end
                position += len(piece)
        return self._size

    def _read_text(self, block: bytes, names: Sequence[str]) -> Rows:
        types = dict.fromkeys(names, pa.binary())
        rows = self._parse(block, types, null_values=())
        rows.is_text = True
        return rows

    def _read_typed(self, block: bytes, features: Mapping[str, Feature], strict: bool) -> Rows:
        types = {name: _type_of(feature) for name, feature in features.items()}
        tokens = {
            features[name].missing_tokens for name, type_ in types.items() if not is_text(type_)
        }
        if len(tokens) <= 1 and not self._hides_text(block, types):
            try:
                rows = self._parse(block, types, null_values=next(iter(tokens), ()))
                return _mark_missing(rows, features, types)
            except pa.ArrowInvalid as error:
                if not strict:
                    raise MismatchError(f"{self.name}: {error}") from error
        rows = self._read_text(block, list(features))
        return self._convert(rows, features, types, strict)

    def _hides_text(self, block: bytes, types: Mapping[str, pa.DataType]) -> bool:
        """Whether a number's spelling would be lost by reading it as one: only then look closer."""
        return any(map(pa.types.is_integer, types.values())) and bool(
            has_leading_zero(np.frombuffer(block, np.uint8), ord(self._delimiter))
        )

    def _parse(
        self, block: bytes, types: Mapping[str, pa.DataType], null_values: Sequence[str]
    ) -> Rows:
        invalid: list[pa.csv.InvalidRow] = []

        def skip(row: pa.csv.InvalidRow) -> str:
            invalid.append(row)
            return "skip"

        table = pa.csv.read_csv(
            pa.BufferReader(block),
            read_options=pa.csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(block) + 1
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=null_values,
                true_values=TRUE,
                false_values=FALSE,
            ),
        )
        columns = {name: _one_chunk(table[name]) for name in types}
        numbers = np.arange(table.num_rows + len(invalid))
        faults = [self._structure_fault(row) for row in invalid]
        return Rows(
            columns=columns,
            num_rows=len(numbers),
            numbers=np.delete(numbers, [fault.row for fault in faults]),
            faults=faults,
        )

    def _structure_fault(self, row: "pa.csv.InvalidRow") -> Fault:
        return Fault(
            source=self.name,
            row=row.number - 1,
            column="",
            value=shown(row.text),
            reason=f"{row.actual_columns} fields, the header has {row.expected_columns}",
        )

    def _convert(
        self,
        rows: Rows,
        features: Mapping[str, Feature],
        types: Mapping[str, pa.DataType],
        strict: bool,
    ) -> Rows:
        """Convert text columns value by value where a whole column does not convert."""
        bad = np.zeros(len(rows.numbers), bool)
        faults: list[Fault] = []
        columns: dict[str, pa.Array] = {}
        for name, feature in features.items():
            text = rows.columns[name]
            columns[name], wrong = convert_text(text, types[name], feature.missing_tokens)
            for index in np.flatnonzero(wrong & ~bad):
                value = text[int(index)].as_py()
                if not strict:
                    raise MismatchError(f"{self.name}: {name}={shown(value)!r}")
                faults.append(self._value_fault(int(rows.numbers[index]), name, value, types[name]))
            bad |= wrong
        converted = Rows(
            columns=columns, num_rows=rows.num_rows, numbers=rows.numbers, faults=rows.faults
        )
        return converted.without(bad, faults) if faults else converted

    def _value_fault(self, row: int, column: str, value: Any, expected: pa.DataType) -> Fault:
        reason = (
            f"is not of type {expected}"
            if not is_text(expected)
            else "is not valid UTF-8: set encoding, for example latin-1"
        )
        return Fault(source=self.name, row=row, column=column, value=shown(value), reason=reason)


def _type_of(feature: Feature) -> pa.DataType:
    """What to read a column as; some columns of other types are wanted as text."""
    is_wanted_as_text = feature.kind == "string"
    return pa.string() if is_wanted_as_text else type_named(feature.source_type, feature.name)


def _mark_missing(
    rows: Rows, features: Mapping[str, Feature], types: Mapping[str, pa.DataType]
) -> Rows:
    for name, array in rows.columns.items():
        tokens = features[name].missing_tokens
        if is_text(types[name]) and tokens:
            rows.columns[name] = _null_where(array, tokens)
        elif pa.types.is_floating(types[name]) and pc.any(pc.is_inf(array)).as_py():
            raise pa.ArrowInvalid(f"infinity in {name}: its text decides")
    return rows


def _null_where(array: pa.Array, tokens: Sequence[str]) -> pa.Array:
    if tuple(tokens) == ("",):
        ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
        if (ends[1:] != ends[:-1]).all():
            return array
        is_missing = pc.equal(pc.binary_length(array), 0)
    else:
        is_missing = pc.is_in(array, pa.array(tokens, array.type))
    return pc.if_else(is_missing, pa.scalar(None, array.type), array)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _contains_quote(path: Path) -> bool:
    with path.open("rb") as file:
        while piece := file.read(blocks.BLOCK_BYTES):
            if b'"' in piece:
                return True
    return False


def _read_header(name: str, head: bytes, delimiter: str) -> tuple[int, str, list[str]]:
    """Position of the first row.

    Delimiter and column names of a CSV file that begins with `head`.
    """
    skipped = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    body = head[skipped:]
    if not body.strip():
        raise InputError(f"{name} is empty. Expected a header line with column names, then rows")
    while body[:1] in (b"\n", b"\r"):
        body, skipped = body[1:], skipped + 1
    first_line = body.split(b"\n", 1)[0].decode("utf-8", "replace")
    chosen = delimiter or max(DELIMITERS, key=first_line.count)
    _, end, _, _ = scan_records(np.frombuffer(body, np.uint8), FIELD_START, ord(chosen), 0)
    end = len(body) if end < 0 else end
    try:
        text = body[:end].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: the header is not UTF-8 ({error}). Set encoding, for example encoding=latin-1"
        ) from error
    names = next(csv.reader(io.StringIO(text, newline=""), delimiter=chosen))
    _check_names(name, names)
    return skipped + end, chosen, names


def _check_names(source: str, names: Sequence[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(
            f"{source}: the header names {', '.join(map(repr, doubled))} more than once. Rename "
            "the columns"
        )
    if not all(names):
        raise InputError(
            f"{source}: column {names.index('') + 1} of {len(names)} has no name in the header "
            f"{names}"
        )
