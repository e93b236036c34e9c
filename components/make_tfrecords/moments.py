"""Compiled passes over one column of numbers."""

from typing import Any

import numpy as np

from components.make_tfrecords.jit import compiled

Array = np.ndarray[Any, Any]


@compiled
def summary(
    values: Array, validity: Array, offset: int, splits: Array
) -> tuple[int, int, int, float, float, float]:
    """Summarize the rows of the first split.

    Args:
        values: int64 or float32 [rows].
        validity: Arrow bitmap, or empty if no value is missing.
        offset: of the first row in it.
        splits: uint8 [rows].

    Returns:
        Number of values, of missing ones, and of finite ones; of the finite ones mean, smallest,
        largest.
    """
    count, missing, finite, total = 0, 0, 0, 0.0
    low, high = np.inf, -np.inf
    for row in range(len(values)):
        if splits[row] != 0:
            continue
        position = row + offset
        if len(validity) and (validity[position >> 3] >> (position & 7)) & 1 == 0:
            missing += 1
            continue
        count += 1
        value = np.float64(values[row])
        if np.isfinite(value):
            finite += 1
            total += value
            low = min(low, value)
            high = max(high, value)
    return count, missing, finite, total / finite if finite else 0.0, low, high


@compiled
def spread(
    values: Array,
    validity: Array,
    offset: int,
    splits: Array,
    mean: float,
    scale: float,
    first: int,
    counts: Array,
) -> float:
    """Count the finite values of the first split in bins, and sum their squared deviations.

    Args:
        values: see `summary`.
        validity: likewise.
        offset: likewise.
        splits: likewise.
        mean: of the finite values.
        scale: 1 / width of a bin, a power of two.
        first: number of the bin that `counts` begins with; bin b holds b <= value * scale < b + 1.
        counts: int64 [bins], added to.
    """
    squares = 0.0
    for row in range(len(values)):
        if splits[row] != 0:
            continue
        position = row + offset
        if len(validity) and (validity[position >> 3] >> (position & 7)) & 1 == 0:
            continue
        value = np.float64(values[row])
        if np.isfinite(value):
            squares += (value - mean) * (value - mean)
            counts[np.int64(np.floor(value * scale)) - first] += 1
    return squares
