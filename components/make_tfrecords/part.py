"""Convert one part of the sources: read, check, encode, split, write one shard of every split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.dataset import Feature, Schema, Shard
from components.make_tfrecords.encode import encode
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import (
    Fault,
    MismatchError,
    Reader,
    Rows,
    Segment,
    shown,
)
from components.make_tfrecords.schema import reading_features
from components.make_tfrecords.split import split_of, thresholds
from components.make_tfrecords.statistics import ColumnStatistics
from components.make_tfrecords.treatment import canonical
from components.make_tfrecords.write import ShardWriter
from components.storage.base import Store
from components.storage.commit import CommittedFile

# Reject records that a part keeps; all are counted.
MAX_FAULTS = 10_000


@dataclass(kw_only=True)
class PartResult:
    """What a part has written and seen.

    Attributes:
        shards: not empty ones.
        files: their objects, index files included.
        segment_rows: rows read of every segment.
        num_rejected: of them, rows with a fault.
        faults: with the segment that they belong to; `row` counts from 0 within it.
        statistics: of the first split by column.
    """

    shards: list[Shard]
    files: list[CommittedFile]
    segment_rows: list[int]
    num_rejected: int
    faults: list[tuple[int, Fault]]
    statistics: dict[str, ColumnStatistics]

    def to_json(self) -> dict[str, Any]:
        return {
            "shards": [shard.to_json() for shard in self.shards],
            "files": [file.to_json() for file in self.files],
            "segment_rows": self.segment_rows,
            "num_rejected": self.num_rejected,
            "faults": [(segment, fault.to_json()) for segment, fault in self.faults],
            "statistics": {name: s.to_json() for name, s in self.statistics.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PartResult":
        return cls(
            shards=[Shard(**shard) for shard in data["shards"]],
            files=[CommittedFile.from_json(file) for file in data["files"]],
            segment_rows=data["segment_rows"],
            num_rejected=data["num_rejected"],
            faults=[(segment, Fault(**fault)) for segment, fault in data["faults"]],
            statistics={
                name: ColumnStatistics.from_json(s) for name, s in data["statistics"].items()
            },
        )


class PartConverter:
    """Converts the rows of one part; one object, one part."""

    def __init__(
        self,
        schema: Schema,
        options: ConvertOptions,
        folder: Path,
        *,
        index: int,
        num_parts: int,
        strict: bool,
    ) -> None:
        self._schema = schema
        self._options = options
        self._strict = strict
        self._reading = reading_features(schema)
        self._columns = sorted((*schema.features, schema.label), key=lambda f: f.name.encode())
        self._bounds = thresholds(options.splits.values())
        self._writers = [
            ShardWriter(folder, split, index, num_parts, options.compression)
            for split in options.splits
        ]
        self._result = PartResult(
            shards=[],
            files=[],
            segment_rows=[],
            num_rejected=0,
            faults=[],
            statistics={f.name: ColumnStatistics.of(f) for f in self._columns},
        )

    def convert(
        self,
        readers: Sequence[Reader],
        segments: Sequence[Segment],
        store: Store,
        on_rows: Callable[[int], None],
    ) -> PartResult:
        """Convert all segments and upload the shards; `on_rows` hears of every batch.

        Raises:
            MismatchError: not strict, and the rows contradict the schema.
        """
        for number, segment in enumerate(segments):
            self._result.segment_rows.append(0)
            reader = readers[segment.source]
            for rows in reader.read(
                segment.start, segment.stop, self._reading, strict=self._strict
            ):
                self._take(number, reader.name, rows)
                on_rows(rows.num_rows)
        for writer in self._writers:
            finished = writer.finish(store)
            if finished:
                self._result.shards.append(finished[0])
                self._result.files.extend(finished[1])
        return self._result

    def _take(self, segment: int, source: str, rows: Rows) -> None:
        rows = self._canonical(source, rows)
        first = self._result.segment_rows[segment]
        self._result.segment_rows[segment] += rows.num_rows
        self._result.num_rejected += rows.num_rows - len(rows.numbers)
        for fault in sorted(rows.faults, key=lambda f: f.row):
            if len(self._result.faults) < MAX_FAULTS:
                moved = Fault(**{**fault.to_json(), "row": first + fault.row})
                self._result.faults.append((segment, moved))
        if not len(rows.numbers):
            return
        arrays = [rows.columns[feature.name] for feature in self._columns]
        encoded = encode(self._columns, arrays, self._options.layout)
        crcs = encoded.crcs
        if self._schema.group:
            crcs = _group_hash(rows.columns["\0group"])
        splits = split_of(crcs, self._bounds, self._options.seed)
        for number, writer in enumerate(self._writers):
            chosen = np.flatnonzero(splits == number)
            data = b"".join([encoded.records[row] for row in chosen])
            writer.write(data, encoded.lengths[chosen])
        in_first = pa.array(splits == 0)
        for feature, array in zip(self._columns, arrays, strict=True):
            self._result.statistics[feature.name].add(feature, array.filter(in_first))

    def _canonical(self, source: str, rows: Rows) -> Rows:
        """Columns as the encoder takes them; rows with values that cannot be stored become faults."""
        bad = np.zeros(len(rows.numbers), bool)
        faults: list[Fault] = []
        columns: dict[str, pa.Array] = {}
        group = rows.columns[self._schema.group] if self._schema.group else None
        for feature in self._columns:
            array = rows.columns[feature.name]
            for wrong, reason in self._treat(feature, array, columns):
                for index in np.flatnonzero(wrong & ~bad):
                    faults.append(
                        Fault(
                            source=source,
                            row=int(rows.numbers[index]),
                            column=feature.name,
                            value=shown(array[int(index)].as_py()),
                            reason=reason,
                        )
                    )
                bad |= wrong
        if group is not None:
            columns["\0group"] = group
        treated = Rows(
            columns=columns, num_rows=rows.num_rows, numbers=rows.numbers, faults=rows.faults
        )
        return treated.without(bad, faults) if faults else treated

    def _treat(
        self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]
    ) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
        """Store the canonical array in `columns`; yield masks of faulty rows with the reason."""
        if feature is self._schema.label:
            if array.null_count:
                yield array.is_null().to_numpy(zero_copy_only=False), "the label is missing"
            if self._schema.classes:
                yield from self._treat_class(feature, array, columns)
                return
        columns[feature.name], wrong = canonical(array, feature.kind)
        if wrong is not None:
            yield wrong, f"is too large for {feature.kind}"
        if feature is self._schema.label and feature.kind == "float":
            infinite = pc.fill_null(pc.is_inf(columns[feature.name]), False)
            if pc.any(infinite).as_py():
                yield infinite.to_numpy(zero_copy_only=False), "the label is not finite"
        elif feature.missing_value is not None and feature.kind in ("int64", "string"):
            self._check_sentinel(feature, columns[feature.name])

    def _treat_class(
        self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]
    ) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
        classes = pa.array(self._schema.classes, pa.string())
        index = pc.index_in(pc.cast(array, pa.string()), value_set=classes)
        columns[feature.name] = pc.cast(index, pa.int64())
        unknown = pc.and_(index.is_null(), array.is_valid())
        if pc.any(unknown).as_py():
            if not self._strict:
                raise MismatchError(f"label {feature.name!r} has a class that the sample lacks")
            yield unknown.to_numpy(zero_copy_only=False), "the label is none of the classes"

    def _check_sentinel(self, feature: Feature, array: pa.Array) -> None:
        if not self._strict and not feature.shape:
            sentinel = pa.scalar(feature.missing_value, array.type)
            if pc.any(pc.equal(array, sentinel)).as_py():
                raise MismatchError(
                    f"column {feature.name!r} has the value that stands for missing"
                )


def _group_hash(groups: pa.Array) -> npt.NDArray[np.uint32]:
    """CRC32C of every group's text; rows without a group are one group."""
    import google_crc32c

    encoded = pc.cast(groups, pa.string()).dictionary_encode(null_encoding="encode")
    words = encoded.dictionary.to_pylist()
    crcs = np.array([google_crc32c.value((word or "").encode()) for word in words], np.uint32)
    return crcs[encoded.indices.to_numpy()]
