"""A keyed permutation of 0..n-1 that is computed, not stored: any position of any epoch at once.

A four-round Feistel network over the smallest even number of bits that holds n, with cycle walking
for the values beyond n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
The round function is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 4
_Words = NDArray[np.uint64]


def permuted(positions: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Map positions of an epoch to record numbers.

    Args:
        positions: values in [0, size), any shape.
        size: number of records.
        seed: of the run.
        epoch: each has its own permutation.

    Returns:
        Record numbers, the same shape; a bijection of [0, size) for each (seed, epoch).
    """
    half = max(1, ((max(size - 1, 1)).bit_length() + 1) // 2)
    keys = _mix(_mix(np.uint64(seed & (2**64 - 1))) ^ _mix(np.uint64(epoch) + np.uint64(1)))
    values = positions.astype(np.uint64)
    outside = np.ones(values.shape, bool)
    while outside.any():
        values[outside] = _encrypt(values[outside], half, keys)
        outside = values >= np.uint64(size)
    return values.astype(np.int64)


def _encrypt(values: _Words, half: int, key: Any) -> _Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    with np.errstate(over="ignore"):
        for index in range(_ROUNDS):
            round_key = key + np.uint64(index) * np.uint64(0x9E3779B97F4A7C15)
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(values: Any) -> Any:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
