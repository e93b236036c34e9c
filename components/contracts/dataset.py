"""The dataset: what make_tfrecords commits and train_model, evaluate_model and export_model read.

A dataset is `dataset.json` (the commit manifest, written last), `schema.json`, and per split its
shards: TFRecord files `<split>-00000-of-00008.tfrecord`, each with `<split>-00000-of-00008.index`:
little-endian uint64 byte offsets of every record, and the file's size at the end (num_records + 1
numbers), so that a reader finds any record in one seek.

Every record is one `tf.train.Example`. Layout `columns`: one feature a column; a missing value is
an absent feature. Layout `packed`: all scalar and fixed-shape columns of a kind lie, in schema
order, in one feature of that kind's name (`PACKED_FEATURES`); a missing value is written as the
column's `missing_value`. Variable-length columns and images stay features of their own.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from components.contracts.errors import InputError
from components.storage.base import Store
from components.storage.commit import CommittedFile, files_of, open_committed
from components.storage.errors import CorruptObjectError, ObjectNotFoundError

# A hit in Kubeflow Pipelines' cache does not look whether the objects are still there.
CONVERT_AGAIN = (
    "If the conversion is shown as cached, Kubeflow Pipelines has answered it from an earlier run "
    "whose objects were deleted since: run again with caching off (enable_caching=False)"
)
FORMAT_VERSION = 1
MANIFEST_NAME = "dataset.json"
SCHEMA_NAME = "schema.json"

Kind = Literal["int64", "float", "string", "bytes", "image"]
Task = Literal["binary", "multiclass", "regression"]
Layout = Literal["columns", "packed"]

# Feature of a packed Example that holds the values of all columns of a kind.
PACKED_FEATURES: dict[str, str] = {
    "int64": "packed/int64",
    "float": "packed/float",
    "string": "packed/bytes",
    "bytes": "packed/bytes",
}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What one pass over the rows of the first split (`train`) has seen of a column.

    Attributes:
        count: values that are not missing (list elements count singly).
        missing: rows whose value is missing.
        mean, variance: of int64 and float columns (population variance), over finite values; 0
            where there is none.
        minimum, maximum: likewise, None where there is none.
        histogram: (edges, counts), edges one longer than counts; empty for other kinds.
        vocabulary: most frequent values of string columns with their counts, by falling count, then
            by value.
        num_distinct: distinct strings; a lower bound where the vocabulary is truncated.
        image: of image columns: smallest and largest height and width before any resizing.
    """

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    variance: float = 0.0
    minimum: float | None = None
    maximum: float | None = None
    histogram: tuple[tuple[float, ...], tuple[int, ...]] = ((), ())
    vocabulary: tuple[tuple[str, int], ...] = ()
    num_distinct: int = 0
    image: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One column.

    Attributes:
        name: as in the source's header; the key in the Example and in the serving signature.
        kind: what the Example holds. Strings are UTF-8. Images are encoded files (PNG or JPEG) of
            `shape`.
        shape: () for a scalar, (n,) for a list of fixed length, (-1,) for a variable one, (height,
            width, channels) for an image.
        source_type: type in the source, with unit and time zone where it has them ("timestamp[us,
            tz=UTC]").
        nullable: whether values were missing in any split.
        missing_value: what stands for a missing value once parsed: NaN, an int64 or a string that
            no row has.
        missing_tokens: texts of the source that mean missing.
        note: the one documented treatment of values that change form ("decimal128(10, 2) stored as
            float32").
        statistics: see `Statistics`.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...] = ()
    source_type: str = ""
    nullable: bool = False
    missing_value: float | int | str | None = None
    missing_tokens: tuple[str, ...] = ()
    note: str = ""
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Strings seen in training, most frequent first."""
        return tuple(value for value, _ in self.statistics.vocabulary)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Columns of a dataset in source order, the label included.

    Attributes:
        features: input columns; does not hold the label nor columns that were dropped.
        label: the label column. Its kind is int64 (a class index) for classification and float for
            regression.
        task: binary, multiclass or regression.
        classes: for classification: the label's source values, the index in this tuple being the
            class index.
        group: column that kept rows together when splitting, "" for none. It may be a feature as
            well.
    """

    features: tuple[Feature, ...]
    label: Feature
    task: Task
    classes: tuple[str, ...] = ()
    group: str = ""

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise KeyError(
            f"no feature {name!r} in the schema; it has "
            f"{[feature.name for feature in self.features]}"
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON form in which NaN stands as the string "NaN"."""
        return dict(_without_nan(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Schema":
        """The inverse of `to_json`."""
        return cls(
            features=tuple(_feature_from_json(feature) for feature in data["features"]),
            label=_feature_from_json(data["label"]),
            task=data["task"],
            classes=tuple(data["classes"]),
            group=data["group"],
        )


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file and its index; names are relative to the dataset's uri."""

    name: str
    index_name: str
    split: str
    num_records: int

    def to_json(self) -> dict[str, Any]:
        """An entry of the manifest's `shards`."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A committed dataset as its readers see it.

    Attributes:
        uri: where it lies.
        schema: its columns.
        layout: `columns` or `packed`.
        compression: "" or "GZIP" (TFRecord options); a compressed shard has no byte offsets: index
            files are empty.
        shards: of all splits, ordered by name.
        files: every data object with size and CRC32C, by name.
        fingerprint: hex digest over sources, schema and options: equal fingerprint, equal bytes.
        num_rows: rows read from the sources, and how many of them were rejected.
        num_rejected: rows in = examples out + rejected.
    """

    uri: str
    schema: Schema
    layout: Layout
    compression: str
    shards: tuple[Shard, ...]
    files: Mapping[str, CommittedFile]
    fingerprint: str
    num_rows: int
    num_rejected: int

    @property
    def splits(self) -> dict[str, int]:
        """Number of examples by split."""
        counts: dict[str, int] = {}
        for shard in self.shards:
            counts[shard.split] = counts.get(shard.split, 0) + shard.num_records
        return counts

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """Shards of one split in order. Raises InputError if there is no such split."""
        found = tuple(shard for shard in self.shards if shard.split == split)
        if not found:
            raise InputError(f"dataset {self.uri} has no split {split!r}; it has {self.splits}")
        return found


def manifest_body(dataset: Dataset, *, writer: str) -> dict[str, Any]:
    """What `dataset.json` says beside the list of files."""
    return {
        "format_version": FORMAT_VERSION,
        "writer": writer,
        "fingerprint": dataset.fingerprint,
        "layout": dataset.layout,
        "compression": dataset.compression,
        "splits": dataset.splits,
        "num_rows": dataset.num_rows,
        "num_rejected": dataset.num_rejected,
        "shards": [shard.to_json() for shard in dataset.shards],
    }


def open_dataset(store: Store, *, remedy: str = CONVERT_AGAIN) -> Dataset:
    """Open the dataset committed at the store's root.

    Presence and sizes of all its objects are verified.

    Raises:
        InputError: nothing is committed there, or what was committed is gone or damaged; names the
            remedy.
    """
    try:
        manifest = open_committed(store, MANIFEST_NAME)
    except (CorruptObjectError, ObjectNotFoundError) as error:
        raise InputError(f"the dataset is damaged: {error}. {remedy}") from error
    if manifest is None:
        raise InputError(
            f"no committed dataset at {store.uri}: {store.uri_of(MANIFEST_NAME)} is missing. "
            f"{remedy}"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{store.uri_of(MANIFEST_NAME)} has format version {manifest.get('format_version')}, "
            f"this code reads {FORMAT_VERSION}. Convert again with this version"
        )
    return Dataset(
        uri=store.uri,
        schema=Schema.from_json(json.loads(store.read(SCHEMA_NAME))),
        layout=manifest["layout"],
        compression=manifest["compression"],
        shards=tuple(Shard(**shard) for shard in manifest["shards"]),
        files={file.name: file for file in files_of(manifest)},
        fingerprint=manifest["fingerprint"],
        num_rows=manifest["num_rows"],
        num_rejected=manifest["num_rejected"],
    )


def _feature_from_json(data: Mapping[str, Any]) -> Feature:
    statistics = dict(data["statistics"])
    edges, counts = statistics["histogram"]
    statistics["histogram"] = (tuple(edges), tuple(counts))
    statistics["vocabulary"] = tuple((value, count) for value, count in statistics["vocabulary"])
    missing = data["missing_value"]
    return Feature(
        **{
            **data,
            "shape": tuple(data["shape"]),
            "missing_tokens": tuple(data["missing_tokens"]),
            "missing_value": math.nan if data["kind"] == "float" and missing == "NaN" else missing,
            "statistics": Statistics(**statistics),
        }
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
