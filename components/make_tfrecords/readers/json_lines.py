"""JSON lines: one object a line; objects within are flattened to `column.field`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.contracts.dataset import Feature
from components.contracts.errors import InputError
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers import blocks
from components.make_tfrecords.readers.base import Fault, MismatchError, Rows, shown
from components.make_tfrecords.readers.json_values import ConflictError, natural_type, typed_array

BLOCK_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLinesReader:
    """A local UTF-8 file; units are bytes."""

    def __init__(self, name: str, path: Path, options: ConvertOptions) -> None:
        self.name = name
        self._path = path
        self._options = options
        self._size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(blocks.SAMPLE_BYTES).removeprefix(BYTE_ORDER_MARK).strip()
        if not head:
            raise InputError(f"{name} is empty. Expected one JSON object a line")
        if head.startswith(b"["):
            raise InputError(
                f"{name} is an array. Expected one object a line, without commas between them: "
                "`jq -c '.[]'` writes it so"
            )

    def source_of(self, row: int) -> str:
        return self.name

    def split(self, num_parts: int) -> list[tuple[int, int]]:
        cuts = {0, self._size}
        for target in np.linspace(0, self._size, num_parts + 1)[1:-1].astype(int):
            cuts.add(blocks.line_end_after(self._path, int(target), self._size))
        edges = sorted(cuts)
        return list(zip(edges[:-1], edges[1:], strict=True))

    def sample(self, start: int, stop: int) -> Iterator[Rows]:
        for position, lines in self._lines(start, stop, blocks.SAMPLE_BYTES):
            yield self._natural(position, lines)
            return

    def read(
        self, start: int, stop: int, features: Mapping[str, Feature] | None, *, strict: bool = True
    ) -> Iterator[Rows]:
        for position, lines in self._lines(start, stop, BLOCK_BYTES):
            if features is None:
                yield self._natural(position, lines)
            else:
                yield self._typed(lines, features, strict)

    def _lines(self, start: int, stop: int, size: int) -> Iterator[tuple[int, list[bytes]]]:
        """Position and lines of every block."""
        for block in blocks.blocks(self._path, start, stop, size, blocks.line_end):
            text = block.removeprefix(BYTE_ORDER_MARK) if start == 0 else block
            yield start, text.removesuffix(b"\n").split(b"\n")
            start += len(block)

    def _natural(self, position: int, lines: Sequence[bytes]) -> Rows:
        records, rows, line_numbers = _parsed(lines)

        def place(index: int) -> str:
            return f"{self.name}:{self._line_at(position) + line_numbers[index]}"

        for name in dict.fromkeys(name for record in records for name in record):
            values = [record.get(name) for record in records]
            rows.places[name] = place(next((i for i, v in enumerate(values) if v is not None), 0))
            try:
                rows.columns[name] = self._natural_array(name, values)
            except ConflictError as conflict:
                raise InputError(
                    f"column {name!r} is {conflict.what} at {place(conflict.index)}"
                    f"{conflict.but(place)}. Make it one type in the source, read it as text with "
                    f"kinds {name}=string, or leave it out with drop {name}"
                ) from conflict
        return rows

    def _natural_array(self, name: str, values: list[Any]) -> pa.Array:
        if name in self._options.drop:
            return pa.nulls(len(values))
        if name in self._options.kinds:
            return typed_array(values, Feature(name=name, kind="string"), lenient=True)[0]
        return pa.array(values, natural_type(values))

    def _typed(self, lines: Sequence[bytes], features: Mapping[str, Feature], strict: bool) -> Rows:
        records, rows, _ = _parsed(lines)
        bad = np.zeros(len(records), bool)

        def reject(index: int, name: str, reason: str) -> None:
            value = records[index].get(name)
            if not strict:
                raise MismatchError(f"{self.name}: {name}={shown(value)!r} {reason}")
            if not bad[index]:
                rows.faults.append(_fault(int(rows.numbers[index]), name, value, reason))
                bad[index] = True

        for name, feature in features.items():
            values = [record.get(name) for record in records]
            lenient = name in self._options.kinds
            rows.columns[name], wrong = typed_array(values, feature, lenient=lenient)
            for place in np.flatnonzero(wrong):
                reject(int(place), name, f"is not of type {feature.source_type}")
        known = features.keys() | set(self._options.drop)
        for index, record in enumerate(records):
            if not record.keys() <= known:
                reject(index, min(record.keys() - known), "is a column that the schema lacks")
        return rows.without(bad, []) if bad.any() else rows

    def _line_at(self, position: int) -> int:
        """Number of the line that begins at a byte, from 1; counted only when it is asked for."""
        number = 1
        with self._path.open("rb") as file:
            while position > 0 and (piece := file.read(min(position, 1 << 20))):
                number += piece.count(b"\n")
                position -= len(piece)
        return number


def _parsed(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], Rows, list[int]]:
    """The objects, rows that have no columns yet, and the position of each object's line."""
    records: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    positions: list[int] = []
    num_rows = 0
    for position, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            records.append(_flat(_object(line)))
            numbers.append(num_rows)
            positions.append(position)
        except UnicodeDecodeError as error:
            reason = f"is not valid UTF-8 ({error.reason}): set encoding, for example latin-1"
            faults.append(_fault(num_rows, "", line, reason))
        except (ValueError, RecursionError) as error:
            faults.append(_fault(num_rows, "", line, f"is not a JSON object: {error}"))
        num_rows += 1
    rows = Rows(columns={}, num_rows=num_rows, numbers=np.array(numbers, np.intp), faults=faults)
    return records, rows, positions


def _object(line: bytes) -> dict[str, Any]:
    value = json.loads(line, parse_constant=_refuse, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    if b"\\u" in line:
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {max(names, key=names.count)!r} more than once")
    return record


def _refuse(token: str) -> Any:
    raise ValueError(f"{token} is not in JSON")


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _fault(row: int, column: str, value: Any, reason: str) -> Fault:
    return Fault(source="", row=row, column=column, value=shown(value), reason=reason)
