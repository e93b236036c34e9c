"""Rows that the parity check sends: real ones, and copies with missing and unseen values."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from components.contracts.dataset import Dataset, Feature, Schema
from components.contracts.errors import InputError
from components.contracts.examples import parse_encoded
from components.contracts.published_model import padding_of
from components.contracts.split import SplitReader
from components.storage.base import Store

UNSEEN = "⁇ never seen in training ⁇"
# Wide tables: so many columns get altered copies.
MOST_ALTERED = 60

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParityRows:
    """What is sent.

    Attributes:
        records: serialized Examples of the real rows as the dataset holds them, the label included.
        rows: raw values by column, a missing one being None: the real rows, then altered copies.
        altered: what was done to each altered row ("wind missing").
    """

    records: list[bytes]
    rows: list[Row]
    altered: list[str]

    def describe(self, index: int) -> str:
        """A row as a person reads it."""
        row = json.dumps({name: _shown(value) for name, value in self.rows[index].items()})
        kind = (
            f"row {index} of the split"
            if index < len(self.records)
            else f"a copy with {self.altered[index - len(self.records)]}"
        )
        return f"{kind}: {row}"


def parity_rows(store: Store, dataset: Dataset, split: str, count: int, cache: Path) -> ParityRows:
    """The first `count` rows of a split, and altered copies of some.

    Raises:
        InputError: the split is empty, or a shard is damaged.
    """
    reader = SplitReader(store, dataset, dataset.shards_of(split), cache)
    records: list[bytes] = []
    with reader.errors_explained():
        for batch in reader.batches(count):
            records += batch.numpy().tolist()[: count - len(records)]
            if len(records) == count:
                break
    if not records:
        raise InputError(f"split {split!r} of {dataset.uri} has no rows to check the export with")
    encoded = parse_encoded(tf.constant(records), dataset.schema, dataset.layout)
    columns = [encoded[feature.name] for feature in dataset.schema.features]
    rows = []
    for index in range(len(records)):
        values = (_value(column[index]) for column in columns)
        rows.append(
            {
                feature.name: None if _is_missing(feature, value) else value
                for feature, value in zip(dataset.schema.features, values, strict=True)
            }
        )
    altered, notes = _altered(dataset.schema, rows)
    return ParityRows(records=records, rows=rows + altered, altered=notes)


def raw_request(schema: Schema, rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Inputs of the raw signature for `rows`, as fresh_process.py reads them."""
    return {feature.name: _raw_column(feature, rows) for feature in schema.features}


def as_example(schema: Schema, row: Row) -> bytes:
    """A row as clients serialize it: one feature a column, none for a missing value, no label."""
    features = {
        feature.name: _feature(feature, row[feature.name])
        for feature in schema.features
        if row[feature.name] is not None
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def tensors_of(request: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The request as tensors in this process."""
    return {
        name: tf.constant(_unhexed(value["values"]), value["dtype"], shape=value["shape"])
        if value["dtype"] == "string"
        else tf.constant(value["values"], value["dtype"], shape=value["shape"])
        for name, value in request.items()
    }


def _altered(schema: Schema, rows: list[Row]) -> tuple[list[Row], list[str]]:
    altered, notes = [], []
    for index, feature in enumerate(schema.features[:MOST_ALTERED]):
        if feature.shape != () or feature.kind == "image":
            continue
        base = rows[index % len(rows)]
        if feature.missing_value is not None:
            altered.append({**base, feature.name: None})
            notes.append(f"{feature.name} missing")
        if feature.kind == "string":
            altered.append({**base, feature.name: UNSEEN.encode()})
            notes.append(f"an unseen {feature.name}")
    return altered, notes


def _value(tensor: Any) -> Any:
    return (
        tensor.numpy().tolist()
        if tensor.shape.rank
        else tensor.numpy().item()
        if (tensor.dtype != tf.string)
        else tensor.numpy()
    )


def _is_missing(feature: Feature, value: Any) -> bool:
    if feature.missing_value is None or feature.shape == (-1,):
        return False
    values = value if isinstance(value, list) else [value]
    if feature.kind == "float":
        return bool(np.isnan(values).all())
    missing = feature.missing_value
    if isinstance(missing, str):
        return all(item == missing.encode() for item in values)
    return all(item == missing for item in values)


def _raw_column(feature: Feature, rows: list[Row]) -> dict[str, Any]:
    values = [row[feature.name] for row in rows]
    missing = padding_of(feature)
    if feature.shape == (-1,):
        longest = max((len(value) for value in values), default=0)
        values = [[*value, *[missing] * (longest - len(value))] for value in values]
    elif feature.shape and feature.kind != "image":
        values = [[missing] * feature.shape[0] if value is None else value for value in values]
    else:
        values = [missing if value is None else value for value in values]
    shape = [len(values), *([len(values[0])] if isinstance(values[0], list) else [])]
    dtype = {"int64": "int64", "float": "float32"}.get(feature.kind, "string")
    return {
        "dtype": dtype,
        "shape": shape,
        "values": _hexed(values) if dtype == "string" else values,
    }


def _hexed(values: list[Any]) -> list[Any]:
    return [
        _hexed(item)
        if isinstance(item, list)
        else (item if isinstance(item, bytes) else item.encode()).hex()
        for item in values
    ]


def _unhexed(values: Any) -> Any:
    if isinstance(values, list):
        return [_unhexed(item) for item in values]
    return bytes.fromhex(values)


def _feature(feature: Feature, value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if feature.kind == "float":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if feature.kind == "int64":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[:60].decode("utf-8", "replace")
    if isinstance(value, list):
        return [_shown(item) for item in value[:8]]
    return value
