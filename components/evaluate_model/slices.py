"""Slices: how the values of a column are told apart while scoring."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from components.contracts.dataset import Feature, Schema, Statistics
from components.contracts.errors import InputError
from components.evaluate_model.tally import Integers

# Wide tables: "*" takes no more columns than a person would look at.
MOST_COLUMNS = 30
NUM_RANGES = 5
OTHER, MISSING = "(other)", "(missing)"


@dataclass(frozen=True, kw_only=True)
class SliceColumn:
    """A sliced column.

    Strings are told apart in the graph, by a table; numbers afterwards, many at once, where
    comparisons cost a hundredth of what they cost there.

    Attributes:
        name: of the column.
        values: as text, by code.
        prepare: in the graph, from the column's tensor to a tensor of numbers, shape [batch].
        encode: from these numbers to codes, int64 [batch].
    """

    name: str
    values: tuple[str, ...]
    prepare: Callable[[Any], Any]
    encode: Callable[[NDArray[Any]], Integers]


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
    missing = str(feature.missing_value or "")
    words = tuple(word for word in feature.vocabulary[:num_values] if word != missing)
    count = len(words)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant([*words, missing]), tf.constant([*range(count), count + 1], tf.int64)
        ),
        default_value=count,
    )
    return SliceColumn(
        name=feature.name,
        values=(*words, OTHER, MISSING),
        prepare=table.lookup,
        encode=lambda codes: codes,
    )


def _by_integer(feature: Feature, low: int, high: int) -> SliceColumn:
    count = high - low + 1

    def encode(values: NDArray[Any]) -> Integers:
        inside = (values >= low) & (values <= high)
        codes = np.where(inside, np.where(inside, values, low) - low, count)
        if feature.missing_value is not None:
            codes[values == feature.missing_value] = count + 1
        return codes

    names = tuple(str(value) for value in range(low, high + 1))
    return SliceColumn(
        name=feature.name,
        values=(*names, OTHER, MISSING),
        prepare=lambda values: values,
        encode=encode,
    )


def _by_range(feature: Feature, edges: list[float]) -> SliceColumn:
    if feature.kind == "int64":
        edges = sorted({float(math.ceil(edge)) for edge in edges})
    count = len(edges) + 1

    def encode(values: NDArray[Any]) -> Integers:
        codes = np.zeros(len(values), np.int64)
        for edge in edges:
            codes += values >= edge
        if feature.kind == "float":
            codes[np.isnan(values)] = count
        elif feature.missing_value is not None:
            codes[values == feature.missing_value] = count
        return codes

    return SliceColumn(
        name=feature.name,
        values=(*_range_names(edges), MISSING),
        prepare=lambda values: values,
        encode=encode,
    )


def _range_names(edges: list[float]) -> list[str]:
    if not edges:
        return ["all"]
    shown = [f"{edge:.4g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"below {shown[0]}", *between, f"{shown[-1]} or more"]


def _quantiles(statistics: Statistics, parts: int) -> list[float]:
    """Edges that cut a column's histogram into parts of about equal counts."""
    edges, counts = (np.array(values, np.float64) for values in statistics.histogram)
    if not len(counts) or not counts.sum():
        return []
    cumulated = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
    found = np.interp(np.arange(1, parts) / parts, cumulated, edges)
    return sorted({float(np.float32(edge)) for edge in found})
