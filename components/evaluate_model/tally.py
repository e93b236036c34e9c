"""What every task's tally has in common: counts and sums that are added up over batches.

A tally never holds an example, only arrays of a fixed size, so that memory does not depend on the
number of examples; and two tallies of different examples add up to the tally of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Values = dict[str, float]

# Examples are dealt to so many groups by turns; leaving out one group at a time gives intervals.
NUM_GROUPS = 20


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Scored examples.

    Attributes:
        labels: class indices or values, shape [batch].
        outputs: of the scored output, [batch] for binary and regression, [batch, classes] for
            multi-class.
        codes: of the slices, one array of shape [batch] per sliced column.
        first: number of the batch's first example in the split.
    """

    labels: NDArray[Any]
    outputs: NDArray[np.float32]
    codes: tuple[Integers, ...]
    first: int


class Tally(Protocol):
    """Counts and sums of one model on one split."""

    state: dict[str, Floats]
    sliced: tuple[dict[str, Floats], ...]
    num_examples: int
    num_not_finite: int

    def add(self, batch: Batch) -> None:
        """Count a batch. Raises InputError if the outputs are not what the task asks for."""


def finite_rows(outputs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows hold finite numbers only, shape [batch]."""
    finite: NDArray[np.bool_] = np.isfinite(outputs)
    return finite if finite.ndim == 1 else np.asarray(finite.all(1))


def group_sums(codes: Integers, size: int, *columns: NDArray[Any]) -> Floats:
    """Sums of columns by code, shape [size, len(columns)]."""
    return np.stack([np.bincount(codes, column, size) for column in columns], 1)


def add_up(into: Mapping[str, Floats], other: Mapping[str, Floats]) -> None:
    """Add arrays by name in place."""
    for name, array in other.items():
        into[name][...] += array
