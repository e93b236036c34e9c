"""From values to column types: what a column can be is what all of its values can be."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import Rows
from components.make_tfrecords.readers.csv import converted
from components.make_tfrecords.treatment import is_text

# Tried in this order: the first that all values of a text column have is its type.
TEXT_TYPES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int64(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ns", "UTC"),
    pa.string(),
)

MAX_CLASSES = 10_000
NUM_SENTINELS = 16
INT_SENTINELS = (-(2**63), 2**63 - 1, *(-(2**63) + i for i in range(1, NUM_SENTINELS)))
STRING_SENTINELS = ("", *("\x00" * i + "missing" for i in range(1, NUM_SENTINELS)))


@dataclass(kw_only=True)
class Evidence:
    """What is known of a column's values.

    Attributes:
        type: the column's type in a typed source; None for text.
        candidates: types that all text values seen so far have.
        sentinels: of the candidates for a missing value, those that a row has.
        labels: distinct values with their counts, for the label column only.
        has_value: whether any value was not missing.
        has_big_integer: whether an integer beyond int64 was seen.
        has_fraction: whether a number with a point or an exponent was seen.
    """

    name: str
    type: pa.DataType | None = None
    candidates: list[pa.DataType] = field(default_factory=lambda: list(TEXT_TYPES))
    sentinels: set[int | str] = field(default_factory=set)
    labels: Counter[str] = field(default_factory=Counter)
    has_value: bool = False
    has_big_integer: bool = False
    has_fraction: bool = False

    @property
    def inferred(self) -> pa.DataType:
        """The type to read the column as."""
        if self.type is not None:
            return self.type
        first = self.candidates[0]
        if not self.has_value or (pa.types.is_floating(first) and not self.has_fraction):
            return pa.string()
        return first

    @property
    def note(self) -> str:
        """Why a text column is not of a narrower type, where that may surprise."""
        if not self.has_value:
            return "no row has a value"
        if self.has_big_integer and not self.has_fraction:
            return "integers beyond int64 kept as text"
        return ""

    def add_text(self, text: pa.Array, options: ConvertOptions) -> None:
        """Take in binary text."""
        words = pc.unique(text)
        for candidate in list(self.candidates):
            tokens = options.tokens_of(self.name, is_text=is_text(candidate))
            values = converted(words, candidate, tokens)
            if values is None:
                if not pa.types.is_string(candidate):
                    self.candidates.remove(candidate)
                continue
            self.has_value |= values.null_count < len(values)
            self._note_sentinels(values)
        if pa.float64() in self.candidates and pa.int64() not in self.candidates:
            self._note_numbers(words, options)

    def count_labels(self, values: pa.Array) -> None:
        """Count the distinct values of the label column, as text."""
        for pair in pc.value_counts(values):
            text = pair["values"].as_py()
            self.labels[text.decode("utf-8", "backslashreplace")] += pair["counts"].as_py()

    def _note_sentinels(self, values: pa.Array) -> None:
        for type_, sentinels in ((pa.int64(), INT_SENTINELS), (pa.string(), STRING_SENTINELS)):
            if values.type == type_:
                found = pc.is_in(pa.array(sentinels, type_), values).to_pylist()
                self.sentinels |= {s for s, seen in zip(sentinels, found, strict=True) if seen}

    def _note_numbers(self, words: pa.Array, options: ConvertOptions) -> None:
        tokens = pa.array(
            [t.encode() for t in options.tokens_of(self.name, is_text=False)], pa.binary()
        )
        numbers = words.filter(pc.invert(pc.is_in(words, tokens)))
        integers = pc.match_substring_regex(numbers, r"^[ \t]*[+-]?[0-9]+[ \t]*$")
        self.has_fraction |= not pc.all(integers).as_py() if len(numbers) else False
        self.has_big_integer |= converted(numbers.filter(integers), pa.int64(), ()) is None


def gather(
    rows: Iterable[Rows], evidence: dict[str, Evidence], options: ConvertOptions
) -> dict[str, Evidence]:
    """Add what batches of untyped rows show to the evidence by column."""
    for batch in rows:
        for name, array in batch.columns.items():
            column = evidence.setdefault(name, Evidence(name=name))
            column.add_text(array, options)
            if name == options.label and len(column.labels) <= MAX_CLASSES:
                column.count_labels(array)
    return evidence
