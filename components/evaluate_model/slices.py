"""Slices: how the values of a column are told apart while scoring."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from components.contracts.dataset import Feature, Schema, Statistics
from components.contracts.errors import InputError

# Wide tables: "*" takes no more columns than a person would look at.
MOST_COLUMNS = 30
NUM_RANGES = 5
OTHER, MISSING = "(other)", "(missing)"


@dataclass(frozen=True, kw_only=True)
class SliceColumn:
    """A sliced column.

    Attributes:
        name: of the column.
        values: as text, by code.
        encode: from the column's tensor, shape [batch], to codes, int64 [batch].
    """

    name: str
    values: tuple[str, ...]
    encode: Callable[[Any], Any]


def slice_columns(schema: Schema, names: Sequence[str], num_values: int) -> tuple[SliceColumn, ...]:
    """Make the slices of the named columns.

    Args:
        schema: of the dataset.
        names: columns; `*` stands for all that can be sliced, at most MOST_COLUMNS.
        num_values: most frequent strings, or integers, that become slices of their own.

    Raises:
        InputError: there is no such column, or it cannot be sliced (images, lists, bytes).
    """
    possible = {feature.name: feature for feature in schema.features if _can_be_sliced(feature)}
    chosen: dict[str, Feature] = {}
    for name in names:
        if name == "*":
            chosen |= dict(list(possible.items())[:MOST_COLUMNS])
        elif name in possible:
            chosen[name] = possible[name]
        else:
            raise InputError(
                f"option slices: {name!r} is not a column that can be sliced; these can: "
                f"{', '.join(possible) or 'none'}"
            )
    return tuple(_slice_column(feature, num_values) for feature in chosen.values())


def _can_be_sliced(feature: Feature) -> bool:
    return feature.shape == () and feature.kind in ("string", "int64", "float")


def _slice_column(feature: Feature, num_values: int) -> SliceColumn:
    if feature.kind == "string":
        return _by_word(feature, num_values)
    statistics = feature.statistics
    low, high = statistics.minimum, statistics.maximum
    # Months, hours and days of a month are values of their own, whatever `num_values` says.
    if feature.kind == "int64" and low is not None and high is not None:
        if high - low < max(num_values, 31):
            return _by_integer(feature, int(low), int(high))
    return _by_range(feature, _quantiles(statistics, NUM_RANGES))


def _by_word(feature: Feature, num_values: int) -> SliceColumn:
    words = feature.vocabulary[:num_values]
    count = len(words)
    missing = feature.missing_value if feature.missing_value is not None else ""
    table = (
        tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(list(words), tf.string), tf.range(count, dtype=tf.int64)
            ),
            default_value=count,
        )
        if words
        else None
    )

    def encode(values: Any) -> Any:
        codes = table.lookup(values) if table else tf.zeros(tf.shape(values), tf.int64)
        is_missing = tf.equal(values, missing)
        if missing in words:
            return codes
        return tf.where(is_missing, tf.constant(count + 1, tf.int64), codes)

    return SliceColumn(name=feature.name, values=(*words, OTHER, MISSING), encode=encode)


def _by_integer(feature: Feature, low: int, high: int) -> SliceColumn:
    count = high - low + 1

    def encode(values: Any) -> Any:
        codes = tf.where(
            tf.logical_and(values >= low, values <= high), values - low, tf.cast(count, tf.int64)
        )
        if feature.missing_value is None:
            return codes
        is_missing = tf.equal(values, tf.constant(feature.missing_value, tf.int64))
        return tf.where(is_missing, tf.cast(count + 1, tf.int64), codes)

    names = tuple(str(value) for value in range(low, high + 1))
    return SliceColumn(name=feature.name, values=(*names, OTHER, MISSING), encode=encode)


def _by_range(feature: Feature, edges: list[float]) -> SliceColumn:
    if feature.kind == "int64":
        edges = sorted({math.ceil(edge) for edge in edges})
    count = len(edges) + 1
    dtype = tf.float32 if feature.kind == "float" else tf.int64

    def encode(values: Any) -> Any:
        codes = tf.raw_ops.Bucketize(input=values, boundaries=[float(edge) for edge in edges])
        codes = tf.cast(codes, tf.int64)
        if feature.kind == "float":
            is_missing = tf.math.is_nan(values)
        elif feature.missing_value is None:
            return codes
        else:
            is_missing = tf.equal(values, tf.constant(feature.missing_value, dtype))
        return tf.where(is_missing, tf.constant(count, tf.int64), codes)

    shown = [f"{edge:.4g}" for edge in edges]
    names = [f"{low} to {high}" for low, high in zip(shown, shown[1:], strict=False)]
    if shown:
        names = [f"below {shown[0]}", *names, f"{shown[-1]} or more"]
    else:
        names = ["all"]
    return SliceColumn(name=feature.name, values=(*names, MISSING), encode=encode)


def _quantiles(statistics: Statistics, parts: int) -> list[float]:
    """Edges that cut a column's histogram into parts of about equal counts."""
    edges, counts = (np.array(values, np.float64) for values in statistics.histogram)
    if not len(counts) or not counts.sum():
        return []
    cumulated = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
    found = np.interp(np.arange(1, parts) / parts, cumulated, edges)
    return sorted({float(np.float32(edge)) for edge in found})
