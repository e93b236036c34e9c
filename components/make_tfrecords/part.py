"""Convert one part of the sources: read, check, encode, split, write one shard of every split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.dataset import Feature, Shard
from components.make_tfrecords.encode import make_encoder
from components.make_tfrecords.images import ImageError, ImageEvidence, normalized
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.plan import Plan
from components.make_tfrecords.readers.base import (
    Fault,
    MismatchError,
    Reader,
    Rows,
    shown,
)
from components.make_tfrecords.readers.text import convert_text
from components.make_tfrecords.schema import reading_features
from components.make_tfrecords.statistics import ColumnStatistics
from components.make_tfrecords.treatment import canonical, is_text, rows_with, type_named
from components.make_tfrecords.write import ShardWriter
from components.storage.base import Store
from components.storage.commit import CommittedFile

# Reject records that a part keeps; all are counted.
MAX_FAULTS = 10_000

# Columns that travel with the others under names that no source can have.
_GROUP = "\0group"
_SIZES = ("\0height", "\0width")

Masks = Iterator[tuple[npt.NDArray[np.bool_], str]]


@dataclass(kw_only=True)
class PartResult:
    """What a part has written and seen.

    Attributes:
        shards: not empty ones.
        files: their objects, index files included.
        segment_rows: rows read of every segment.
        num_rejected: of them, rows with a fault.
        faults: with the segment that they belong to; `row` counts from 0 within it.
        nullable: columns with a missing value in any split.
        statistics: of the first split by column.
    """

    shards: list[Shard] = field(default_factory=list)
    files: list[CommittedFile] = field(default_factory=list)
    segment_rows: list[int] = field(default_factory=list)
    num_rejected: int = 0
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    nullable: set[str] = field(default_factory=set)
    statistics: dict[str, ColumnStatistics]

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the record of a part."""
        return {
            "shards": [shard.to_json() for shard in self.shards],
            "files": [file.to_json() for file in self.files],
            "segment_rows": self.segment_rows,
            "num_rejected": self.num_rejected,
            "faults": [(segment, fault.to_json()) for segment, fault in self.faults],
            "nullable": sorted(self.nullable),
            "statistics": {name: s.to_json() for name, s in self.statistics.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PartResult":
        """The inverse of `to_json`."""
        return cls(
            shards=[Shard(**shard) for shard in data["shards"]],
            files=[CommittedFile.from_json(file) for file in data["files"]],
            segment_rows=data["segment_rows"],
            num_rejected=data["num_rejected"],
            faults=[(segment, Fault(**fault)) for segment, fault in data["faults"]],
            nullable=set(data["nullable"]),
            statistics={
                name: ColumnStatistics.from_json(s) for name, s in data["statistics"].items()
            },
        )


class PartConverter:
    """Converts the rows of one part; one object, one part."""

    def __init__(self, plan: Plan, index: int, options: ConvertOptions, folder: Path) -> None:
        self._schema = plan.schema
        self._segments = plan.parts[index]
        self._strict = plan.strict
        self._options = options
        self._reading = reading_features(plan.schema)
        self._columns = [*plan.schema.features, plan.schema.label]
        self._encoder = make_encoder(self._columns, options)
        self._writers = [
            ShardWriter(folder, split, index, len(plan.parts), options.compression)
            for split in options.splits
        ]
        self._result = PartResult(
            statistics={feature.name: ColumnStatistics.of(feature) for feature in self._columns}
        )

    def convert(
        self, readers: Sequence[Reader], store: Store, on_rows: Callable[[int], None]
    ) -> PartResult:
        """Convert the part and upload its shards; `on_rows` hears of every batch.

        Raises:
            MismatchError: the plan is not strict, and the rows contradict its schema.
        """
        try:
            self._read_segments(readers, on_rows)
            for writer in self._writers:
                finished = writer.finish(store)
                if finished:
                    self._result.shards.append(finished[0])
                    self._result.files.extend(finished[1])
        finally:
            for writer in self._writers:
                writer.close()
        return self._result

    def _read_segments(self, readers: Sequence[Reader], on_rows: Callable[[int], None]) -> None:
        for number, segment in enumerate(self._segments):
            self._result.segment_rows.append(0)
            reader = readers[segment.source]
            for rows in reader.read(
                segment.start, segment.stop, self._reading, strict=self._strict
            ):
                self._take(number, rows)
                on_rows(rows.num_rows)

    def _take(self, segment: int, rows: Rows) -> None:
        rows = self._canonical(rows)
        first = self._result.segment_rows[segment]
        self._result.segment_rows[segment] += rows.num_rows
        self._result.num_rejected += rows.num_rows - len(rows.numbers)
        for fault in sorted(rows.faults, key=lambda fault: fault.row):
            if len(self._result.faults) < MAX_FAULTS:
                self._result.faults.append((segment, replace(fault, row=first + fault.row)))
        if len(rows.numbers):
            self._write(rows)

    def _write(self, rows: Rows) -> None:
        arrays = [rows.columns[feature.name] for feature in self._columns]
        group_crcs = _crc_of_groups(rows.columns[_GROUP]) if self._schema.group else None
        encoded = self._encoder.encode(arrays, group_crcs)
        for writer, records, lengths in zip(
            self._writers, encoded.records, encoded.lengths, strict=True
        ):
            writer.write(records, lengths)
        in_first = pa.array(encoded.splits == 0)
        for feature, array in zip(self._columns, arrays, strict=True):
            if array.null_count:
                self._result.nullable.add(feature.name)
            statistics = self._result.statistics[feature.name]
            statistics.add(feature, array, encoded.splits)
            if feature.kind == "image":
                for size in _SIZES:
                    values = rows.columns[feature.name + size].filter(in_first)
                    statistics.add_size(size.lstrip("\0"), values)

    def _canonical(self, rows: Rows) -> Rows:
        """Columns as the encoder takes them; rows with values that cannot be stored are faults."""
        bad = np.zeros(len(rows.numbers), bool)
        faults: list[Fault] = []
        columns: dict[str, pa.Array] = {}
        for feature in self._columns:
            array = rows.columns[feature.name]
            for wrong, reason in self._treat(feature, array, columns):
                for index in np.flatnonzero(wrong & ~bad):
                    faults.append(
                        Fault(
                            source="",
                            row=int(rows.numbers[index]),
                            column=feature.name,
                            value=_shown(feature, array[int(index)].as_py()),
                            reason=reason,
                        )
                    )
                bad |= wrong
        if self._schema.group:
            columns[_GROUP] = rows.columns[self._schema.group]
        treated = Rows(
            columns=columns, num_rows=rows.num_rows, numbers=rows.numbers, faults=rows.faults
        )
        return treated.without(bad, faults) if faults else treated

    def _treat(self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]) -> Masks:
        """Store the canonical array in `columns`; yield masks of faulty rows with the reason."""
        is_label = feature is self._schema.label
        if is_label and array.null_count:
            yield array.is_null().to_numpy(zero_copy_only=False), "the label is missing"
        if is_label and self._schema.classes:
            yield from self._treat_class(feature, array, columns)
        elif feature.kind == "image":
            yield from self._treat_images(feature, array, columns)
        else:
            yield from self._treat_values(feature, array, columns)

    def _treat_values(
        self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]
    ) -> Masks:
        if is_text(array.type) and feature.kind in ("int64", "float"):
            target = type_named(feature.source_type, feature.name)
            array, wrong = convert_text(pc.cast(array, pa.binary()), target, feature.missing_tokens)
            if wrong.any():
                yield wrong, f"is not of type {target}"
        stored, faults = canonical(array, feature.kind, feature.shape)
        columns[feature.name] = stored
        if faults and feature.shape and not self._strict:
            raise MismatchError(f"lists in {feature.name!r} do not have one length")
        yield from faults
        if feature is self._schema.label:
            infinite = pc.fill_null(pc.is_inf(stored), False)
            if pc.any(infinite).as_py():
                yield infinite.to_numpy(zero_copy_only=False), "the label is not finite"
        elif feature.kind != "float" and feature.missing_value is not None:
            yield from self._treat_sentinel(feature, stored)

    def _treat_images(
        self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]
    ) -> Masks:
        images: list[bytes] = []
        sizes: list[tuple[int, int]] = []
        reasons: dict[str, list[int]] = {}
        if not self._strict:
            self._check_form(feature, array)
        for row, data in enumerate(array):
            try:
                image, *size = normalized(data.as_py() or b"", feature, self._options)
            except ImageError as error:
                reasons.setdefault(str(error), []).append(row)
                image, size = b"", [0, 0]
            images.append(image)
            sizes.append((size[0], size[1]))
        columns[feature.name] = pa.array(images, pa.binary())
        for position, name in enumerate(_SIZES):
            columns[feature.name + name] = pa.array([size[position] for size in sizes], pa.int32())
        for reason, rows in reasons.items():
            mask = np.zeros(len(images), bool)
            mask[rows] = True
            yield mask, reason

    def _check_form(self, feature: Feature, images: pa.Array) -> None:
        """Check that images agree with the form that a sample of them showed."""
        evidence = ImageEvidence()
        for data in images:
            evidence.add(data.as_py() or b"")
        if evidence.num_images and not evidence.agrees(feature.shape, self._options):
            raise MismatchError("the images do not have one size, or some have more channels")

    def _treat_class(
        self, feature: Feature, array: pa.Array, columns: dict[str, pa.Array]
    ) -> Masks:
        classes = pa.array(self._schema.classes, pa.string())
        index = pc.index_in(pc.cast(array, pa.string()), value_set=classes)
        columns[feature.name] = pc.cast(index, pa.int64())
        if index.null_count > array.null_count:
            if not self._strict:
                raise MismatchError(f"label {feature.name!r} has a class that the sample lacks")
            unknown = pc.and_(index.is_null(), array.is_valid())
            yield unknown.to_numpy(zero_copy_only=False), "is none of the classes"

    def _treat_sentinel(self, feature: Feature, array: pa.Array) -> Masks:
        values = array.flatten() if feature.shape else array
        sentinel = pa.scalar(feature.missing_value).cast(values.type)
        taken = pc.fill_null(pc.equal(values, sentinel), False)
        if not pc.any(taken).as_py():
            return
        if not self._strict:
            raise MismatchError(f"column {feature.name!r} has the value that stands for missing")
        mask = taken.to_numpy(zero_copy_only=False)
        if feature.shape:
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            row_of = np.repeat(np.arange(len(array)), lengths)
            yield rows_with(mask, row_of, len(array)), "has the value that stands for missing"
        else:
            yield mask, "is the value that stands for missing"


def _shown(feature: Feature, value: Any) -> str:
    return f"{len(value or b'')} bytes" if feature.kind in ("image", "bytes") else shown(value)


def _crc_of_groups(groups: pa.Array) -> npt.NDArray[np.uint32]:
    """CRC32C of every group's text; rows without a group are one group."""
    encoded = pc.cast(groups, pa.string()).dictionary_encode(null_encoding="encode")
    words = encoded.dictionary.to_pylist()
    crcs = np.array([google_crc32c.value((word or "").encode()) for word in words], np.uint32)
    hashes: npt.NDArray[np.uint32] = crcs[encoded.indices.to_numpy()]
    return hashes
