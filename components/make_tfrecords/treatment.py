"""Source types and the one treatment each of them gets.

From any Arrow array to what an Example can hold.

| source type | stored as |
| --- | --- |
| signed and unsigned integers | int64; a value beyond int64 is a fault |
| boolean | int64, 0 or 1 |
| date, time, timestamp, duration | int64 in the source's unit; unit and zone are in `source_type` |
| float, double, decimal | float32; a finite value beyond float32 is a fault, NaN is missing |
| string, dictionary of strings | string |
| binary | bytes |
| list | list of the above, of fixed or variable length |
| struct | its fields, named `column.field` |
"""

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from components.contracts.dataset import Kind
from components.contracts.errors import InputError

CANONICAL: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "image": pa.binary(),
}


def kind_of(source: pa.DataType, column: str) -> Kind:
    """Kind of a source type, of its elements for lists.

    Raises InputError for a type without a treatment.
    """
    if is_list(source) and not is_list(source.value_type):
        return kind_of(source.value_type, column)
    source = plain(source)
    if pa.types.is_integer(source) or pa.types.is_boolean(source):
        return "int64"
    if pa.types.is_temporal(source) and not pa.types.is_interval(source):
        return "int64"
    if pa.types.is_floating(source) or pa.types.is_decimal(source):
        return "float"
    if pa.types.is_null(source) or _is_string(source):
        return "string"
    if _is_binary(source):
        return "bytes"
    raise InputError(
        f"column {column!r} has the type {source}, which no Example can hold. "
        f"Convert it in the source, or leave it out with drop {column}"
    )


def note_of(source: pa.DataType) -> str:
    """The documented treatment of values that change form, empty where they do not."""
    source = plain(source)
    if is_list(source):
        return note_of(source.value_type)
    if pa.types.is_boolean(source):
        return "boolean stored as int64: false 0, true 1"
    if pa.types.is_date32(source):
        return "date stored as int64: days since 1970-01-01"
    if pa.types.is_timestamp(source):
        zone = f", zone {source.tz}" if source.tz else ", without a time zone"
        return f"timestamp stored as int64: {source.unit} since 1970-01-01{zone}"
    if pa.types.is_time(source):
        return f"time stored as int64: {source.unit} since midnight"
    if pa.types.is_temporal(source):
        return f"{source} stored as int64"
    if pa.types.is_float64(source) or pa.types.is_decimal(source):
        return f"{source} stored as float32"
    return ""


def is_text(source: pa.DataType | None) -> bool:
    """Whether missing values of this source type are marked by the tokens of strings."""
    return source is None or _is_string(plain(source)) or _is_binary(source)


def type_named(name: str, column: str) -> pa.DataType:
    """Parse a source type as `str(pa.DataType)` writes it. Raises InputError."""
    aliases = {"float": "double", "bytes": "binary", "boolean": "bool", "timestamp": "timestamp[s]"}
    name = aliases.get(name, name)
    zoned = re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=(.+)\]", name)
    decimal = re.fullmatch(r"decimal(?:128)?\((\d+), (-?\d+)\)", name)
    if zoned:
        return pa.timestamp(zoned[1], zoned[2])
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    try:
        return pa.type_for_alias(name)
    except ValueError as error:
        raise InputError(
            f"column {column!r}: {name!r} is no type. Expected int64, float, string, bytes, bool, "
            "date32, timestamp[s] or another name that pyarrow knows"
        ) from error


def is_list(source: pa.DataType) -> bool:
    """Whether a source type is a list of values."""
    return bool(
        pa.types.is_list(source)
        or pa.types.is_large_list(source)
        or pa.types.is_fixed_size_list(source)
    )


def unified(
    one: pa.DataType | None, other: pa.DataType | None, column: str, places: tuple[str, str]
) -> pa.DataType | None:
    """The type of a column that has both types in different places; null gives way to any other.

    Raises:
        InputError: no type holds both without reinterpreting values.
    """
    if one is None or other is None or one == other:
        return other if one is None else one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if is_list(one) and is_list(other):
        return pa.list_(unified(one.value_type, other.value_type, column, places))
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.uint64() if pa.uint64() in (one, other) else pa.int64()
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if all(any(test(type_) for test in numbers) for type_ in (one, other)):
        return pa.float64()
    if _is_string(plain(one)) and _is_string(plain(other)):
        return pa.string()
    raise InputError(
        f"column {column!r} is {other} at {places[1]}, but {one} at {places[0]}. Give it one type "
        f"in all sources, or leave it out with drop {column}"
    )


def plain(source: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary or run-end encoded column."""
    has_values = pa.types.is_dictionary(source) or pa.types.is_run_end_encoded(source)
    return source.value_type if has_values else source


class CanonicalArray(NamedTuple):
    """An array of the canonical type of its kind.

    And masks of rows that cannot be stored by reason.
    """

    array: pa.Array
    faults: list[tuple[npt.NDArray[np.bool_], str]]


def canonical(array: pa.Array, kind: Kind, shape: tuple[int, ...]) -> CanonicalArray:
    """Turn an array of any source type into the canonical Arrow type of a kind and shape."""
    if shape and kind != "image":
        return _canonical_list(array, kind, shape)
    if pa.types.is_dictionary(array.type) or pa.types.is_run_end_encoded(array.type):
        array = pc.cast(array, array.type.value_type)
    if kind not in ("float", "int64"):
        return CanonicalArray(pc.cast(array, CANONICAL[kind]), [])
    stored, bad = _to_float32(array) if kind == "float" else _to_int64(array)
    return CanonicalArray(stored, [] if bad is None else [(bad, f"is too large for {kind}")])


def _canonical_list(array: pa.Array, kind: Kind, shape: tuple[int, ...]) -> CanonicalArray:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = canonical(pc.list_flatten(array), kind, ())
    faults = []
    row_of = np.repeat(np.arange(len(array)), lengths)
    for bad, reason in values.faults:
        faults.append((rows_with(bad, row_of, len(array)), f"has an element that {reason}"))
    if values.array.null_count and kind != "float":
        missing = values.array.is_null().to_numpy(zero_copy_only=False)
        faults.append((rows_with(missing, row_of, len(array)), "has a missing element"))
    if shape != (-1,):
        wrong = (lengths != shape[0]) & array.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            faults.append((wrong, f"has not {shape[0]} elements as the schema says"))
    elements = values.array
    if kind == "float" and elements.null_count:
        elements = pc.fill_null(elements, pa.scalar(np.nan, pa.float32()))
    mask = array.is_null() if array.null_count else None
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=mask)
    return CanonicalArray(lists, faults)


def rows_with(
    elements: npt.NDArray[np.bool_], row_of: npt.NDArray[np.intp], num_rows: int
) -> npt.NDArray[np.bool_]:
    """Mask of the rows with a marked element, given the row of every element."""
    rows = np.zeros(num_rows, bool)
    rows[row_of[elements]] = True
    return rows


def _to_int64(array: pa.Array) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    if pa.types.is_uint64(array.type):
        large = pc.fill_null(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())), False)
        bad = large.to_numpy(zero_copy_only=False)
        return pc.cast(array, pa.int64(), safe=False), bad if bad.any() else None
    if pa.types.is_temporal(array.type):
        width = array.type.bit_width
        array = array.view(pa.int32() if width == 32 else pa.int64())
    return pc.cast(array, pa.int64()), None


def _to_float32(array: pa.Array) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    if pa.types.is_float32(array.type):
        return _nan_as_null(array), None
    wide = pc.cast(array, pa.float64(), safe=False)
    validity = None if wide.null_count == 0 else wide.is_valid().to_numpy(zero_copy_only=False)
    values = np.frombuffer(wide.buffers()[1], np.float64, len(wide) + wide.offset)[wide.offset :]
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    missing = np.isnan(narrow)
    bad = np.isinf(narrow) & np.isfinite(values)
    if validity is not None:
        missing |= ~validity
        bad &= validity
    has_missing = bool(missing.any())
    return pa.array(narrow, mask=missing if has_missing else None), bad if bad.any() else None


def _nan_as_null(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(pc.is_nan(array), False), pa.scalar(None, array.type), array)


def _is_string(source: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(source)
        or pa.types.is_large_string(source)
        or pa.types.is_string_view(source)
    )


def _is_binary(source: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(source)
        or pa.types.is_large_binary(source)
        or pa.types.is_binary_view(source)
        or pa.types.is_fixed_size_binary(source)
    )
