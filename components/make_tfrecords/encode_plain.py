"""Rows to records: the tf.train.Example wire format and TFRecord framing, written plainly.

This is the reference that the compiled encoder is tested against, and what runs where a compiled
one does not apply. Features are ordered by name, as protobuf's deterministic serialization orders
them.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.contracts.dataset import PACKED_FEATURES, Feature, Layout

_LIST_TAGS = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}
_NO_ENTRY = b""


def encode(
    features: Sequence[Feature], columns: Sequence[pa.Array], layout: Layout
) -> tuple[list[bytes], npt.NDArray[np.uint32]]:
    """Encode rows given as canonical arrays (see `treatment`), one for each feature.

    Returns:
        Framed records, and the CRC32C of the data of each.
    """
    entries = (
        _column_entries(features, columns)
        if layout == "columns"
        else _packed_entries(features, columns)
    )
    ordered = [entries[name] for name in sorted(entries, key=str.encode)]
    records = []
    crcs = np.empty(len(columns[0]), np.uint32)
    for row, parts in enumerate(zip(*ordered, strict=True)):
        body = b"".join(parts)
        data = b"\x0a" + varint(len(body)) + body
        crcs[row] = google_crc32c.value(data)
        records.append(frame(data, int(crcs[row])))
    return records, crcs


def frame(data: bytes, crc: int) -> bytes:
    """TFRecord framing: length, masked CRC of the length, data, masked CRC of the data."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked(google_crc32c.value(length))),
            data,
            struct.pack("<I", masked(crc)),
        )
    )


def masked(crc: int) -> int:
    """TFRecord's masking of a CRC32C (tensorflow/core/lib/hash/crc32c.h)."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Base-128 encoding of an unsigned integer."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _column_entries(
    features: Sequence[Feature], columns: Sequence[pa.Array]
) -> dict[str, list[bytes]]:
    entries = {}
    for feature, array in zip(features, columns, strict=True):
        list_kind = _list_kind(feature)
        body_of = _BODIES[list_kind]
        key = _key(feature.name)
        known: dict[Any, bytes] = {None: _NO_ENTRY}
        rows = []
        for value in _values(feature, array):
            entry = known.get(value)
            if entry is None:
                items = value if feature.shape and feature.kind != "image" else (value,)
                entry = _entry(key, list_kind, body_of(items))
                if list_kind != "float":  # 0.0 and -0.0 are one key of a dictionary
                    known[value] = entry
            rows.append(entry)
        entries[feature.name] = rows
    return entries


def _packed_entries(
    features: Sequence[Feature], columns: Sequence[pa.Array]
) -> dict[str, list[bytes]]:
    groups: dict[str, list[tuple[Feature, pa.Array]]] = {}
    others: list[tuple[Feature, pa.Array]] = []
    for feature, array in zip(features, columns, strict=True):
        if feature.kind == "image" or feature.shape == (-1,):
            others.append((feature, array))
        else:
            groups.setdefault(PACKED_FEATURES[feature.kind], []).append((feature, array))
    entries = _column_entries([f for f, _ in others], [a for _, a in others])
    for name, members in groups.items():
        list_kind = _list_kind(members[0][0])
        key, body_of = _key(name), _BODIES[list_kind]
        filled = [_filled(feature, array) for feature, array in members]
        entries[name] = [
            _entry(key, list_kind, body_of([item for items in row for item in items]))
            for row in zip(*filled, strict=True)
        ]
    return entries


def _filled(feature: Feature, array: pa.Array) -> list[tuple[Any, ...]]:
    """Values of every row, the missing ones replaced."""
    width = feature.shape[0] if feature.shape else 1
    stand_in: Any = feature.missing_value
    if isinstance(stand_in, str):
        stand_in = stand_in.encode()
    rows = []
    for value in _values(feature, array):
        if value is None:
            rows.append((stand_in,) * width)
        else:
            rows.append(value if feature.shape else (value,))
    return rows


def _values(feature: Feature, array: pa.Array) -> list[Any]:
    """Python values: bytes for strings and bytes, tuples for lists."""
    if feature.shape and feature.kind != "image":
        return [
            None if value is None else tuple(map(_as_bytes, value)) for value in array.to_pylist()
        ]
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    return list(array.to_pylist())


def _as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _list_kind(feature: Feature) -> str:
    return feature.kind if feature.kind in ("int64", "float") else "bytes"


def _key(name: str) -> bytes:
    data = name.encode()
    return b"\x0a" + varint(len(data)) + data


def _entry(key: bytes, list_kind: str, body: bytes) -> bytes:
    """One entry of the map Features.feature."""
    values = _LIST_TAGS[list_kind] + varint(len(body)) + body
    content = key + b"\x12" + varint(len(values)) + values
    return b"\x0a" + varint(len(content)) + content


def _int64_body(items: Sequence[int]) -> bytes:
    if not items:
        return b""
    data = b"".join(varint(item & 0xFFFFFFFFFFFFFFFF) for item in items)
    return b"\x0a" + varint(len(data)) + data


def _float_body(items: Sequence[float]) -> bytes:
    if not items:
        return b""
    return b"\x0a" + varint(4 * len(items)) + struct.pack(f"<{len(items)}f", *items)


def _bytes_body(items: Sequence[bytes]) -> bytes:
    return b"".join(b"\x0a" + varint(len(item)) + item for item in items)


_BODIES: dict[str, Callable[[Any], bytes]] = {
    "int64": _int64_body,
    "float": _float_body,
    "bytes": _bytes_body,
}
