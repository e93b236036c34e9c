"""Tables for hypothesis to draw, files that hold them, and what an Example of each row must say.

What is expected is worked out from the drawn values alone, by none of the code under test.
"""

import codecs
import csv
import io
import json
import math
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

LABEL = "label"
EPOCH = datetime(1970, 1, 1)
FLOAT32_MAX = float(np.finfo(np.float32).max)
INT64 = (-(2**63), 2**63 - 1)

# Names and texts avoid only what no file of the kind can hold.
NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='.,;|\t"\ufeff'),
    min_size=1,
    max_size=12,
).filter(lambda name: name.strip() == name and name != LABEL)
TEXTS = st.one_of(
    st.sampled_from(["NA", "None", "null", " ", '"', ',"', "a\nb", "x\r\ny", "007", "1e5", "true"]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40),
    st.text('ab\n",;\t', min_size=100, max_size=300),
)
FLOATS = st.one_of(
    st.floats(-FLOAT32_MAX, FLOAT32_MAX),
    st.floats(width=32, allow_infinity=False, allow_nan=False),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 0.1, FLOAT32_MAX, 16777217.0]),
)
INTEGERS = st.one_of(
    st.integers(*INT64),
    st.integers(-300, 300),
    st.sampled_from([*INT64, 2**53 + 1, 127, 128, -1, 2**56 - 1, 2**56]),
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; times are drawn as integers in the type's unit, None is missing."""

    name: str
    type: pa.DataType
    values: tuple[Any, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Short, however many rows there are."""
        pool = sorted(set(map(repr, self.values)))
        printer.text(f"Column({self.name!r}, {self.type}, {len(self.values)} of {', '.join(pool)})")

    @property
    def element(self) -> pa.DataType:
        return self.type.value_type if is_list(self.type) else plain(self.type)

    @property
    def is_untyped(self) -> bool:
        """Whether no value shows a type."""
        values = [value for value in self.values if value is not None]
        return not any(values) if is_list(self.type) else not values

    @property
    def shape(self) -> tuple[int, ...]:
        if not is_list(self.type):
            return ()
        lengths = {len(value) for value in self.values if value is not None}
        return (lengths.pop(),) if len(lengths) == 1 and lengths != {0} else (-1,)

    @property
    def kind(self) -> str:
        element = self.element
        if pa.types.is_floating(element) or pa.types.is_decimal(element):
            return "float"
        if pa.types.is_string(element) or pa.types.is_large_string(element):
            return "string"
        return "bytes" if pa.types.is_binary(element) else "int64"

    def stored(self, value: Any) -> Any:
        """What an Example must hold for one value that is not missing."""
        if is_list(self.type):
            return tuple(map(self._scalar, value))
        return self._scalar(value)

    def _scalar(self, value: Any) -> Any:
        if self.kind == "float":
            return np.float32(math.nan if value is None else float(value))
        if self.kind == "int64":
            return int(value)
        return value.encode() if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of one length, and how the file that holds them is written."""

    columns: tuple[Column, ...]
    num_rows: int
    options: dict[str, Any] = field(default_factory=dict)
    style: dict[str, Any] = field(default_factory=dict)


def is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_)


def plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def spread(pool: list[Any], num_rows: int, null_share: float, chance: random.Random) -> tuple:
    """A column of values drawn from a pool: short to draw, easy to shrink."""
    return tuple(
        None if chance.random() < null_share else chance.choice(pool) for _ in range(num_rows)
    )


@st.composite
def tables(draw: Any, types: Any, styles: Any, *, max_columns: int = 6) -> Table:
    """Tables with columns of `types`, a strategy of pairs (type, strategy of values)."""
    num_rows = draw(st.sampled_from([1, 2, 7, 8, 9, 40, 300]))
    chance = random.Random(draw(st.integers(0, 2**32)))
    columns = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=max_columns, unique=True)):
        type_, values = draw(types)
        pool = draw(st.lists(values, min_size=1, max_size=5))
        share = draw(st.sampled_from([0.0, 0.0, 0.1, 0.9, 1.0]))
        columns.append(Column(name=name, type=type_, values=spread(pool, num_rows, share, chance)))
    return Table(columns=tuple(columns), num_rows=num_rows, style=draw(styles))


def integers_of(type_: pa.DataType) -> Any:
    bits, signed = type_.bit_width, pa.types.is_signed_integer(type_)
    high = min(2 ** (bits - signed) - 1, INT64[1])
    low = -(2 ** (bits - 1)) if signed else 0
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, min(128, high)]))


SECONDS = st.integers(-62_000_000_000, 250_000_000_000)
CSV_TYPES = st.sampled_from(
    [
        (pa.int64(), INTEGERS),
        (pa.float64(), FLOATS),
        (pa.bool_(), st.booleans()),
        (pa.string(), TEXTS.filter(bool)),  # an empty field is a missing value
        (pa.date32(), st.integers(-700_000, 2_900_000)),
        (pa.timestamp("s"), SECONDS),
        (pa.timestamp("s", "UTC"), SECONDS),
        (pa.timestamp("ns"), st.integers(*INT64).map(lambda n: n // 10**6 // 8 * 10**6)),
    ]
)
CSV_STYLES = st.fixed_dictionaries(
    {
        "encoding": st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"]),
        "delimiter": st.sampled_from([",", ",", "\t", ";", "|"]),
        "end": st.sampled_from(["\n", "\r\n"]),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        "last_end": st.booleans(),
    }
)
LATIN_TEXTS = st.text(st.characters(codec="latin-1", exclude_characters="\0"), max_size=30)

JSON_SCALARS = st.sampled_from(
    [
        (pa.int64(), INTEGERS),
        (pa.float64(), FLOATS),
        (pa.bool_(), st.booleans()),
        (pa.string(), TEXTS),
    ]
)
JSON_TYPES = st.one_of(
    JSON_SCALARS,
    JSON_SCALARS.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1], max_size=3))),
    JSON_SCALARS.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1], min_size=2, max_size=2))),
)
JSON_STYLES = st.fixed_dictionaries(
    {
        "ascii": st.booleans(),
        "absent": st.booleans(),
        "end": st.sampled_from(["\n", "\r\n", "\n\n"]),
        "mark": st.booleans(),
    }
)

PARQUET_SCALARS = st.one_of(
    st.sampled_from(
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        ]
    ).map(lambda type_: (type_, integers_of(type_))),
    st.sampled_from(
        [
            (pa.float64(), FLOATS),
            (pa.float32(), st.floats(width=32, allow_nan=False)),
            (pa.bool_(), st.booleans()),
            (pa.string(), TEXTS),
            (pa.large_string(), TEXTS),
            (pa.binary(), st.binary(max_size=40)),
            (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
            (pa.date32(), st.integers(-700_000, 2_900_000)),
            (pa.time32("ms"), st.integers(0, 86_399_999)),
            (pa.time64("us"), st.integers(0, 86_399_999_999)),
            (pa.timestamp("ms"), st.integers(-(2**53), 2**53)),
            (pa.timestamp("us", "UTC"), st.integers(-(2**53), 2**53)),
            (pa.timestamp("ns", "Europe/Berlin"), st.integers(-(2**62), 2**62)),
            (pa.duration("us"), st.integers(*INT64)),
        ]
    ),
)
PARQUET_TYPES = st.one_of(
    PARQUET_SCALARS,
    st.sampled_from([(pa.dictionary(pa.int32(), pa.string()), TEXTS)]),
    PARQUET_SCALARS.map(lambda pair: (pa.list_(pair[0]), st.lists(pair[1], max_size=3))),
    PARQUET_SCALARS.map(
        lambda pair: (pa.list_(pair[0], 3), st.lists(pair[1], min_size=3, max_size=3))
    ),
)
PARQUET_STYLES = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1 << 20, 50, 3]),
        "compression": st.sampled_from(["snappy", "none", "zstd"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
    }
)


def write_csv(table: Table, path: Path) -> dict[str, Any]:
    """Write a CSV file; returns the options that reading it takes."""
    style = table.style
    text = io.StringIO(newline="")
    writer = csv.writer(
        text,
        delimiter=style["delimiter"],
        lineterminator=style["end"],
        quoting=style["quoting"],
    )
    writer.writerow([LABEL, *(column.name for column in table.columns)])
    for row in range(table.num_rows):
        writer.writerow(
            [str(row), *(_csv_text(column, column.values[row]) for column in table.columns)]
        )
    whole = text.getvalue() if style["last_end"] else text.getvalue()[: -len(style["end"])]
    path.write_bytes(whole.encode(style["encoding"]))
    needs_name = style["encoding"] not in ("utf-8", "utf-8-sig", "utf-16")
    return {
        "kinds": {column.name: str(column.type) for column in table.columns},
        "delimiter": style["delimiter"],
        "encoding": style["encoding"] if needs_name else "",
        "source_format": "csv",
    }


def _csv_text(column: Column, value: Any) -> str:
    if value is None:
        return ""
    if pa.types.is_boolean(column.type):
        return "true" if value else "False"
    if pa.types.is_date(column.type):
        return (EPOCH + timedelta(days=value)).date().isoformat()
    if pa.types.is_timestamp(column.type):
        unit = {"s": 1, "ns": 10**9}[column.type.unit]
        when = EPOCH + timedelta(seconds=value // unit, microseconds=value % unit // 1000)
        return when.isoformat() + ("Z" if column.type.tz else "")
    return repr(value) if isinstance(value, float) else str(value)


def write_json_lines(table: Table, path: Path) -> dict[str, Any]:
    """Write JSON lines; returns the options that reading them takes."""
    style = table.style
    lines = []
    for row in range(table.num_rows):
        record: dict[str, Any] = {LABEL: row}
        for column in table.columns:
            if column.values[row] is not None or not style["absent"] or not row:
                record[column.name] = column.values[row]
        lines.append(json.dumps(record, ensure_ascii=style["ascii"]) + style["end"])
    mark = codecs.BOM_UTF8 if style["mark"] else b""
    path.write_bytes(mark + "".join(lines).encode())
    return {"source_format": "jsonl"}


def write_parquet(table: Table, path: Path) -> dict[str, Any]:
    """Write a Parquet file; returns the options that reading it takes."""
    arrays = {LABEL: pa.array(range(table.num_rows), pa.int64())}
    for column in table.columns:
        arrays[column.name] = _arrow_array(column.type, column.values)
    pq.write_table(pa.table(arrays), path, **table.style)
    return {}


def _arrow_array(type_: pa.DataType, values: tuple[Any, ...]) -> pa.Array:
    if is_list(type_):
        element = type_.value_type
        flat = tuple(item for value in values if value is not None for item in value)
        lists = pa.array(
            [None if value is None else [0] * len(value) for value in values], pa.list_(pa.int8())
        )
        nulls = lists.is_null() if lists.null_count else None
        made = pa.ListArray.from_arrays(
            lists.offsets, _arrow_array(element, flat), pa.list_(element), mask=nulls
        )
        return made.cast(type_)
    if pa.types.is_temporal(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(type_)
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode()
    return pa.array(values, type_)
