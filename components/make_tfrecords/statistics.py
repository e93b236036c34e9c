"""Column statistics in one pass, in parts that merge: the same numbers whatever the number of processes."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.dataset import Feature, Statistics

MAX_BINS = 64
MAX_VOCABULARY = 10_000
# Beyond this many distinct strings a part keeps the more frequent half, so that memory stays bounded.
MAX_COUNTED = 1 << 16
MAX_COUNTED_BYTES = 16 << 20


@dataclass(kw_only=True)
class DyadicHistogram:
    """Counts in bins of width 2**exponent at multiples of it, at most `MAX_BINS` of them.

    When values come to lie outside, bins are merged in pairs: counts stay exact, and histograms of parts merge
    into the histogram of the whole.
    """

    exponent: int = -1074
    first: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count finite values, shape [n]."""
        if not len(values):
            return
        self._cover(float(values.min()), float(values.max()))
        bins = np.floor(np.ldexp(values, -self.exponent)) - self.first
        self.counts += np.bincount(bins.astype(np.intp), minlength=len(self.counts))

    def merge(self, other: "DyadicHistogram") -> None:
        """Add the counts of another part."""
        if not len(other.counts):
            return
        self._cover(*other._range(), exponent=other.exponent)
        for index in np.flatnonzero(other.counts):
            left = math.ldexp(other.first + int(index), other.exponent)
            self.counts[math.floor(math.ldexp(left, -self.exponent)) - self.first] += other.counts[
                index
            ]

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

    def _cover(self, low: float, high: float, exponent: int = -1074) -> None:
        if len(self.counts):
            known_low, known_high = self._range()
            low, high = min(low, known_low), max(high, known_high)
        spread = max(high - low, math.ulp(max(abs(low), abs(high))))
        wanted = max(self.exponent, exponent, math.frexp(spread / (MAX_BINS - 1))[1])
        first = math.floor(math.ldexp(low, -wanted))
        last = math.floor(math.ldexp(high, -wanted))
        counts = np.zeros(last - first + 1, np.int64)
        for index in np.flatnonzero(self.counts):
            left = math.ldexp(self.first + int(index), self.exponent)
            counts[math.floor(math.ldexp(left, -wanted)) - first] += self.counts[index]
        self.exponent, self.first, self.counts = wanted, first, counts


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

    def add(self, feature: Feature, array: pa.Array) -> None:
        """Take in rows of the first split: a canonical array of the feature."""
        self.missing += array.null_count
        if feature.shape and feature.kind != "image":
            array = array.flatten()
        self.count += len(array) - array.null_count
        if feature.kind in ("int64", "float"):
            self._add_numbers(array.drop_null().to_numpy(zero_copy_only=False).astype(np.float64))
        elif feature.kind == "string":
            for pair in pc.value_counts(array.drop_null()):
                self.words[pair["values"].as_py()] += pair["counts"].as_py()
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

    def _add_numbers(self, values: npt.NDArray[np.float64]) -> None:
        values = values[np.isfinite(values)]
        if not len(values):
            return
        mean = float(values.mean())
        self._merge_moments(len(values), mean, float(np.square(values - mean).sum()))
        self._widen(float(values.min()))
        self._widen(float(values.max()))
        self.histogram.add(values)

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
