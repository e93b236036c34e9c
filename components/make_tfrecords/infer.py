"""From values to column types: what a column can be is what all of its values can be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.errors import InputError
from components.make_tfrecords.images import ImageEvidence
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.readers.base import Rows
from components.make_tfrecords.readers.text import converted
from components.make_tfrecords.treatment import is_list, is_text, plain, unified

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
INT_SENTINELS: tuple[int | str, ...] = (
    -(2**63),
    2**63 - 1,
    *(-(2**63) + i for i in range(1, NUM_SENTINELS)),
)
STRING_SENTINELS: tuple[int | str, ...] = (
    "",
    *("\x00" * i + "missing" for i in range(1, NUM_SENTINELS)),
)


@dataclass(kw_only=True)
class Evidence:
    """What is known of a column's values.

    Attributes:
        name: of the column.
        place: where its type was seen first, for messages.
        type: the column's type in a typed source; None for text.
        candidates: of text: types that all values seen so far have.
        sentinels: of the candidates for a missing value, those that a row has.
        labels: distinct values with their counts, for the label column only.
        list_lengths: up to two different lengths of lists.
        images: for a column of images.
        has_value: whether any value was not missing.
        has_big_integer: whether an integer beyond int64 was seen in text.
        has_fraction: whether a number with a point or an exponent was seen in text.
    """

    name: str
    place: str = ""
    type: pa.DataType | None = None
    candidates: list[pa.DataType] = field(default_factory=lambda: list(TEXT_TYPES))
    sentinels: set[int | str] = field(default_factory=set)
    labels: Counter[str] = field(default_factory=Counter)
    list_lengths: set[int] = field(default_factory=set)
    images: ImageEvidence | None = None
    has_value: bool = False
    has_big_integer: bool = False
    has_fraction: bool = False

    @property
    def inferred(self) -> pa.DataType:
        """The type to read the column as."""
        if self.type is not None:
            return pa.string() if pa.types.is_null(self.type) else plain(self.type)
        first = self.candidates[0]
        if not self.has_value or (pa.types.is_floating(first) and not self.has_fraction):
            return pa.string()
        return first

    @property
    def note(self) -> str:
        """What may surprise in the inferred type."""
        if not self.has_value:
            return "no row has a value"
        if self.type is None and self.has_big_integer and not self.has_fraction:
            return "integers beyond int64 kept as text"
        return ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a column that is no image."""
        if self.type is None or not is_list(self.type):
            return ()
        lengths = self.list_lengths
        return (next(iter(lengths)),) if len(lengths) == 1 and lengths != {0} else (-1,)

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

    def add_typed(self, array: pa.Array, place: str) -> None:
        """Take in an array of a typed source. Raises InputError where types conflict."""
        self._unify(array.type, place)
        self.has_value |= array.null_count < len(array)
        if is_list(array.type):
            lengths = pc.unique(pc.list_value_length(array).drop_null()).to_pylist()
            self.list_lengths = set(sorted(self.list_lengths | set(lengths))[:2])
            array = pc.list_flatten(array)
        if pa.types.is_dictionary(array.type):
            array = pc.cast(array, array.type.value_type)
        if pa.types.is_integer(array.type) and not pa.types.is_uint64(array.type):
            self._note_sentinels(pc.unique(pc.cast(array, pa.int64())))
        elif is_text(array.type):
            self._note_sentinels(pc.unique(pc.cast(array, pa.binary())))

    def count_labels(self, values: pa.Array) -> None:
        """Count the distinct values of the label column, as text."""
        if len(self.labels) > MAX_CLASSES:
            return
        if not pa.types.is_binary(values.type):
            values = pc.cast(pc.cast(values.drop_null(), pa.string()), pa.binary())
        for pair in pc.value_counts(values):
            text = pair["values"].as_py()
            self.labels[text.decode("utf-8", "backslashreplace")] += pair["counts"].as_py()

    def merge(self, other: "Evidence") -> None:
        """Add what another part of the sources shows. Raises InputError where types conflict."""
        if other.type is not None:
            self._unify(other.type, other.place)
        self.candidates = [c for c in self.candidates if c in other.candidates]
        self.sentinels |= other.sentinels
        self.labels.update(other.labels)
        self.list_lengths = set(sorted(self.list_lengths | other.list_lengths)[:2])
        if other.images is not None:
            self.images = self.images or ImageEvidence()
            self.images.merge(other.images)
        self.has_value |= other.has_value
        self.has_big_integer |= other.has_big_integer
        self.has_fraction |= other.has_fraction

    def _unify(self, other: pa.DataType, place: str) -> None:
        if self.type is None or (pa.types.is_null(self.type) and not pa.types.is_null(other)):
            self.place = place
        self.type = unified(self.type, other, self.name, (self.place, place))

    def _note_sentinels(self, values: pa.Array) -> None:
        if pa.types.is_int64(values.type):
            sentinels, candidates = INT_SENTINELS, pa.array(INT_SENTINELS, pa.int64())
        elif is_text(values.type):
            sentinels, values = STRING_SENTINELS, pc.cast(values, pa.binary())
            candidates = pa.array([str(s).encode() for s in STRING_SENTINELS], pa.binary())
        else:
            return
        found = pc.is_in(candidates, values).to_pylist()
        self.sentinels.update(s for s, is_found in zip(sentinels, found, strict=True) if is_found)

    def _note_numbers(self, words: pa.Array, options: ConvertOptions) -> None:
        tokens = [token.encode() for token in options.tokens_of(self.name, is_text=False)]
        numbers = words.filter(pc.invert(pc.is_in(words, pa.array(tokens, pa.binary()))))
        integers = pc.match_substring_regex(numbers, r"^[ \t]*[+-]?[0-9]+[ \t]*$")
        self.has_fraction |= not pc.all(integers).as_py() if len(numbers) else False
        self.has_big_integer |= converted(numbers.filter(integers), pa.int64(), ()) is None


def gather(
    rows: Iterable[Rows], evidence: dict[str, Evidence], options: ConvertOptions, source: str
) -> None:
    """Add what batches of untyped rows of a source show to the evidence by column."""
    for batch in rows:
        for name, array in batch.columns.items():
            column = evidence.setdefault(name, Evidence(name=name))
            if batch.images and name in batch.images:
                column.type, column.has_value = pa.binary(), True
                column.images = column.images or ImageEvidence()
                for data in array:
                    column.images.add(data.as_py())
            elif batch.is_text:
                column.add_text(array, options)
            else:
                column.add_typed(array, batch.places.get(name, source))
            if name == options.label:
                column.count_labels(array)


def joined_text(samples: Iterable[Rows]) -> list[Rows]:
    """Batches of untyped text of one source as one, since each is cheap and its inference is not.

    Others stay as they are: their arrays may differ in type.
    """
    found = list(samples)
    if not found or not all(rows.is_text and not rows.images for rows in found):
        return found
    names = found[0].columns
    whole = replace(
        found[0],
        columns={n: pa.concat_arrays([rows.columns[n] for rows in found]) for n in names},
    )
    return [whole]


def merged(
    parts: Sequence[tuple[str, dict[str, Evidence]]], *, optional: bool
) -> dict[str, Evidence]:
    """Evidence of all parts of the sources, given with a name for messages.

    Args:
        parts: name and evidence, in order.
        optional: whether a part may lack columns that others have.

    Raises:
        InputError: types conflict, or a part has other columns.
    """
    total: dict[str, Evidence] = {}
    for source, evidence in parts:
        if total and not optional and set(total) != set(evidence):
            extra, lacking = set(evidence) - set(total), set(total) - set(evidence)
            raise InputError(
                f"the columns of {source} are not those of the sources before it: it has "
                f"{sorted(extra) or 'none'} beside them and lacks {sorted(lacking) or 'none'}. "
                "Convert them apart, or give all of them the same columns"
            )
        for name, column in evidence.items():
            if name in total:
                total[name].merge(column)
            else:
                total[name] = column
    return total
