"""Which split a row belongs to.

A stable hash of the record's bytes, or of the group's value, against thresholds.

The hash is the CRC32C that TFRecord framing needs anyway, mixed with the seed: equal rows have
equal bytes and so stay on one side, whatever their order, file or run.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def thresholds(fractions: Iterable[float]) -> npt.NDArray[np.uint64]:
    """Upper bounds of the splits on the scale of `mixed`, the last one left out."""
    bounds = np.cumsum(list(fractions))[:-1]
    return np.array([min(int(bound * 2**64), 2**64 - 1) for bound in bounds], np.uint64)


def seed_offset(seed: int) -> int:
    """What a seed adds to every CRC."""
    return (seed * 0x9E3779B97F4A7C15) % 2**64


def mixed(crc: npt.NDArray[np.uint32], seed: int) -> npt.NDArray[np.uint64]:
    """Spread CRCs evenly over 64 bits: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    value = crc.astype(np.uint64) + np.uint64(seed_offset(seed))
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def split_of(
    crc: npt.NDArray[np.uint32], bounds: npt.NDArray[np.uint64], seed: int
) -> npt.NDArray[np.intp]:
    """Index of the split of every row, shape [rows]."""
    return np.searchsorted(bounds, mixed(crc, seed), side="right")
