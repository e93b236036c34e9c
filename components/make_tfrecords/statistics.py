"""Column statistics in one pass, in parts that merge.

The same numbers whatever the number of processes.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.dataset import Feature, Statistics
from components.make_tfrecords import moments

MAX_BINS = 64
MAX_VOCABULARY = 10_000
# Beyond this many distinct strings a part keeps the more frequent half, so that memory stays
# bounded.
MAX_COUNTED = 1 << 16
MAX_COUNTED_BYTES = 16 << 20


@dataclass(kw_only=True)
class DyadicHistogram:
    """Counts in bins of width 2**exponent at multiples of it, at most `MAX_BINS` of them.

    When values come to lie outside, bins are merged in pairs: counts stay exact, and histograms of
    parts merge into the histogram of the whole.
    """

    exponent: int = -1074
    first: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def merge(self, other: "DyadicHistogram") -> None:
        """Add the counts of another part."""
        if not len(other.counts):
            return
        self.cover(*other._range(), exponent=other.exponent)
        self._add_counts(other.exponent, other.first, other.counts)

    def edges(self) -> tuple[float, ...]:
        """Bounds of the bins, one more than there are bins."""
        if not len(self.counts):
            return ()
        return tuple(math.ldexp(self.first + i, self.exponent) for i in range(len(self.counts) + 1))

    def _range(self) -> tuple[float, float]:
        seen = np.flatnonzero(self.counts)
        return (
            math.ldexp(self.first + int(seen[0]), self.exponent),
            math.ldexp(self.first + int(seen[-1]), self.exponent),
        )

    def cover(self, low: float, high: float, exponent: int = -1074) -> None:
        """Have bins for values from `low` to `high`, of width 2**`exponent` at least."""
        if len(self.counts):
            known_low, known_high = self._range()
            low, high = min(low, known_low), max(high, known_high)
        spread = max(high - low, math.ulp(max(abs(low), abs(high))))
        wanted = max(self.exponent, exponent, math.frexp(spread / (MAX_BINS - 1))[1])
        first = math.floor(math.ldexp(low, -wanted))
        last = math.floor(math.ldexp(high, -wanted))
        known = self.exponent, self.first, self.counts
        if (wanted, first, last - first + 1) == (self.exponent, self.first, len(self.counts)):
            return
        self.exponent, self.first = wanted, first
        self.counts = np.zeros(last - first + 1, np.int64)
        self._add_counts(*known)

    def _add_counts(self, exponent: int, first: int, counts: npt.NDArray[np.int64]) -> None:
        """Add the counts of bins that are no wider than these and lie within them."""
        seen = np.flatnonzero(counts)
        lefts = np.ldexp((first + seen).astype(np.float64), exponent)
        bins = np.floor(np.ldexp(lefts, -self.exponent)).astype(np.int64)
        np.add.at(self.counts, bins - self.first, counts[seen])


@dataclass(kw_only=True)
class ColumnStatistics:
    """What one part has seen of a column."""

    count: int = 0
    missing: int = 0
    num_finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float | None = None
    maximum: float | None = None
    histogram: DyadicHistogram = field(default_factory=DyadicHistogram)
    words: Counter[str] = field(default_factory=Counter)
    num_dropped: int = 0
    image: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, feature: Feature) -> "ColumnStatistics":
        """Empty statistics. Bins of integer columns are at least 1 wide."""
        exponent = 0 if feature.kind == "int64" else -1074
        return cls(histogram=DyadicHistogram(exponent=exponent))

    def add(self, feature: Feature, array: pa.Array, splits: npt.NDArray[np.uint8]) -> None:
        """Take in the rows of split 0 of a canonical array of the feature."""
        if feature.shape and feature.kind != "image":
            self.missing += _num_missing(array, splits)
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
            array, splits = array.flatten(), np.repeat(splits, lengths)
            self._add(feature, array, splits)
        else:
            self.missing += self._add(feature, array, splits)

    def _add(self, feature: Feature, array: pa.Array, splits: npt.NDArray[np.uint8]) -> int:
        """Take in scalars; return the number of missing ones."""
        if feature.kind in ("int64", "float"):
            return self._add_numbers(array, splits)
        missing = _num_missing(array, splits)
        self.count += int(np.count_nonzero(splits == 0)) - missing
        if feature.kind == "string":
            self._add_words(array, splits)
        return missing

    def _add_words(self, array: pa.Array, splits: npt.NDArray[np.uint8]) -> None:
        encoded = array.dictionary_encode()
        words = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(len(words)).to_numpy()[splits == 0]
        counts = np.bincount(indices, minlength=len(words) + 1).tolist()[:-1]
        for word, count in zip(words, counts, strict=True):
            if count:
                self.words[word] += count
        self._bound_words()

    def add_size(self, name: str, values: pa.Array) -> None:
        """Take in heights or widths of images before any resizing."""
        if len(values):
            extremes = pc.min_max(values)
            self._widen_size(f"min_{name}", extremes["min"].as_py())
            self._widen_size(f"max_{name}", extremes["max"].as_py())

    def merge(self, other: "ColumnStatistics") -> None:
        """Add another part's statistics; parts are merged in their order."""
        self.count += other.count
        self.missing += other.missing
        self._merge_moments(other.num_finite, other.mean, other.squares)
        for value in (other.minimum, other.maximum):
            self._widen(value)
        self.histogram.merge(other.histogram)
        self.num_dropped += other.num_dropped
        self.words.update(other.words)
        self._bound_words()
        for key, size in other.image.items():
            self._widen_size(key, size)

    def result(self) -> Statistics:
        """The statistics as the schema holds them."""
        ordered = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        edges = self.histogram.edges()
        return Statistics(
            count=self.count,
            missing=self.missing,
            mean=self.mean,
            variance=self.squares / self.num_finite if self.num_finite else 0.0,
            minimum=self.minimum,
            maximum=self.maximum,
            histogram=(edges, tuple(int(count) for count in self.histogram.counts)),
            vocabulary=tuple(ordered[:MAX_VOCABULARY]),
            num_distinct=len(ordered) + self.num_dropped,
            image=self.image,
        )

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the record of a part."""
        data = dict(vars(self))
        data["histogram"] = {
            "exponent": self.histogram.exponent,
            "first": self.histogram.first,
            "counts": self.histogram.counts.tolist(),
        }
        data["words"] = list(self.words.items())
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ColumnStatistics":
        """The inverse of `to_json`."""
        histogram = data["histogram"]
        return cls(
            **{
                **data,
                "histogram": DyadicHistogram(
                    **{**histogram, "counts": np.array(histogram["counts"], np.int64)}
                ),
                "words": Counter(dict(data["words"])),
            }
        )

    def _add_numbers(self, array: pa.Array, splits: npt.NDArray[np.uint8]) -> int:
        dtype = np.int64 if pa.types.is_int64(array.type) else np.float32
        bits, data = array.buffers()
        values = np.frombuffer(data or b"", dtype)[array.offset :][: len(array)]
        validity = np.frombuffer(bits if bits and array.null_count else b"", np.uint8)
        count, missing, finite, mean, low, high = moments.summary(
            values, validity, array.offset, splits
        )
        self.count += count
        if finite:
            self.histogram.cover(low, high)
            squares = moments.spread(
                values,
                validity,
                array.offset,
                splits,
                mean,
                2.0**-self.histogram.exponent,
                self.histogram.first,
                self.histogram.counts,
            )
            self._merge_moments(finite, mean, squares)
            self._widen(low)
            self._widen(high)
        return int(missing)

    def _merge_moments(self, count: int, mean: float, squares: float) -> None:
        """Chan, Golub, LeVeque (1979): mean and sum of squared deviations of a union."""
        if not count:
            return
        total = self.num_finite + count
        distance = mean - self.mean
        self.squares += squares + distance * distance * self.num_finite * count / total
        self.mean += distance * count / total
        self.num_finite = total

    def _widen(self, value: float | None) -> None:
        if value is None:
            return
        self.minimum = value if self.minimum is None else min(self.minimum, value)
        self.maximum = value if self.maximum is None else max(self.maximum, value)

    def _widen_size(self, key: str, size: int) -> None:
        choose = min if key.startswith("min") else max
        self.image[key] = choose(self.image.get(key, size), size)

    def _bound_words(self) -> None:
        if len(self.words) <= MAX_COUNTED and sum(map(len, self.words)) <= MAX_COUNTED_BYTES:
            return
        ordered = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        kept, size = Counter[str](), 0
        for word, count in ordered[: MAX_COUNTED // 2]:
            size += len(word)
            if size > MAX_COUNTED_BYTES // 2:
                break
            kept[word] = count
        self.num_dropped += len(self.words) - len(kept)
        self.words = kept


def _num_missing(array: pa.Array, splits: npt.NDArray[np.uint8]) -> int:
    if not array.null_count:
        return 0
    return int(np.count_nonzero(array.is_null().to_numpy(zero_copy_only=False) & (splits == 0)))
