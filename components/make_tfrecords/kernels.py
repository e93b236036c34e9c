"""The compiled pass over Arrow buffers.

Example wire format, TFRecord framing, CRC32C and split, row by row.

Every entry of the map of features has this form, with lengths as varints:

    0A <entry> 0A <name> name 12 <feature> TAG <list> body

where TAG 1A is an Int64List (body: 0A <size> varints), 12 a FloatList (body: 0A <size> floats) and
0A a BytesList (body: 0A <size> bytes, for each value). See `encode_plain` for the same in plain
Python.

The kernel reads two tables of int64 by address: one record an entry, one record a column ("member")
of it.
"""

from typing import Any

import numpy as np

from components.make_tfrecords.jit import compiled
from components.make_tfrecords.machine import (
    copy_memory,
    crc32c,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    move_memory,
    num_bits,
    store_u8,
    store_u32,
    store_u64,
)

# An int64 or uint64 of the machine: numba tells them apart by use, mypy cannot.
Integer = Any

INT64, FLOAT, BYTES = 0, 1, 2
FRAME_HEAD_BYTES, FRAME_BYTES = 12, 16
# Stores are done by whole words, which may reach this far beyond what they mean to write.
SLACK_BYTES = 32
# Tags and lengths of an entry beside its key and its body, and what a store may reach beyond them.
MAX_PREFIX_BYTES = 64

# Fields of the record of a column.
KIND, WIDTH, DATA, OFFSETS, DATA_END, VALIDITY, VALIDITY_OFFSET, FILL, FILL_SIZE = range(9)
# Fields of the record of an entry: the bytes from its tag to its name's end, and its members.
HEAD, HEAD_SIZE, MEMBERS, NUM_MEMBERS, OMITS_MISSING = range(5)
FIELDS, RECORD_BYTES = 16, 128

_WORD = 8
_HIGH_BITS = np.uint64(0x8080808080808080)

Array = np.ndarray[Any, Any]


@compiled
def varint_size(value: Integer) -> Integer:
    """Bytes of the varint of an unsigned value."""
    return (num_bits(value) * 9 + 64) >> 6


@compiled
def store_varint(address: Integer, value: Integer) -> Integer:
    """Write the varint of an unsigned value, by a whole word; return the address past it."""
    bits = num_bits(value)
    if bits <= 56:
        word = np.uint64(0)
        for group in range(8):
            shift = np.uint64(7 * group)
            word |= ((value >> shift) & np.uint64(127)) << np.uint64(8 * group)
        size = (bits * 9 + 64) >> 6
        word |= _HIGH_BITS & ((np.uint64(1) << np.uint64(8 * (size - 1))) - np.uint64(1))
        store_u64(address, word)
        return address + size
    while value >= np.uint64(128):
        store_u8(address, (value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        address += 1
    store_u8(address, value)
    return address + 1


@compiled
def copy_short(target: Integer, source: Integer, size: Integer, source_end: Integer) -> None:
    """Copy by words where the source allows to read them whole."""
    if size <= 16 and source + 16 <= source_end:
        store_u64(target, load_u64(source))
        store_u64(target + 8, load_u64(source + 8))
    else:
        copy_memory(target, source, size)


@compiled
def is_valid(member: Integer, row: Integer) -> Any:
    """Whether a row of a column has a value."""
    bits = load_i64(member + _WORD * VALIDITY)
    if bits == 0:
        return True
    position = row + load_i64(member + _WORD * VALIDITY_OFFSET)
    return (load_u8(bits + (position >> 3)) >> np.uint64(position & 7)) & np.uint64(1) != 0


@compiled
def range_of(member: Integer, row: Integer) -> tuple[int, int]:
    """Start and size of a row's bytes or list, in elements of the column's data."""
    offsets = load_i64(member + _WORD * OFFSETS) + 4 * row
    first = load_i32(offsets)
    return first, load_i32(offsets + 4) - first


@compiled
def elements_of(member: Integer, row: Integer, valid: bool) -> tuple[int, int]:
    """First element and number of elements of a row of a column."""
    width = load_i64(member + _WORD * WIDTH)
    if width == 0:
        return row, 1
    if not valid:
        return 0, max(width, 0)
    return range_of(member, row)


@compiled
def store_body(address: Integer, member: Integer, row: Integer) -> Integer:
    """Write what a column adds to the body of its entry; return the address past it."""
    valid = is_valid(member, row)
    kind = load_i64(member + _WORD * KIND)
    data, fill = load_i64(member + _WORD * DATA), load_i64(member + _WORD * FILL)
    if kind == BYTES:
        first, size = range_of(member, row) if valid else (0, load_i64(member + _WORD * FILL_SIZE))
        source = data + first if valid else fill
        store_u8(address, np.uint64(0x0A))
        address = store_varint(address + 1, np.uint64(size))
        copy_short(address, source, size, load_i64(member + _WORD * DATA_END) if valid else 0)
        return address + size
    first, count = elements_of(member, row, valid)
    for index in range(first, first + count):
        if kind == FLOAT:
            store_u32(address, load_u32(data + 4 * index) if valid else np.uint64(fill))
            address += 4
        else:
            value = load_u64(data + 8 * index) if valid else np.uint64(fill)
            address = store_varint(address, value)
    return address


@compiled
def store_scalar(address: Integer, entry: Integer, member: Integer, row: Integer) -> Integer:
    """Write the entry of one present scalar if all its lengths are of one byte; else return 0."""
    kind, data = load_i64(member + _WORD * KIND), load_i64(member + _WORD * DATA)
    value, source = np.uint64(0), np.int64(0)
    if kind == INT64:
        value = load_u64(data + 8 * row)
        tag, size = np.uint64(0x1A), varint_size(value)
    elif kind == FLOAT:
        value = load_u32(data + 4 * row)
        tag, size = np.uint64(0x12), 4
    else:
        first, size = range_of(member, row)
        source = data + first
        tag = np.uint64(0x0A)
    head, head_size = load_i64(entry + _WORD * HEAD), load_i64(entry + _WORD * HEAD_SIZE)
    entry_size = head_size + 4 + size
    if entry_size >= 128:
        return 0
    store_u64(address, load_u64(head) | np.uint64(entry_size) << np.uint64(8))
    for position in range(8, head_size, 8):
        store_u64(address + position, load_u64(head + position))
    address += head_size
    length = np.uint64(size)
    word = (length + np.uint64(4)) << np.uint64(8) | (length + np.uint64(2)) << np.uint64(24)
    word |= tag << np.uint64(16) | length << np.uint64(40) | np.uint64(0x0A00000012)
    store_u64(address, word)
    address += 6
    if kind == INT64:
        store_varint(address, value)
    elif kind == FLOAT:
        store_u32(address, value)
    else:
        copy_short(address, source, size, load_i64(member + _WORD * DATA_END))
    return address + size


@compiled
def store_entry(address: Integer, entry: Integer, row: Integer) -> Integer:
    """Write an entry of any form; return the address past it."""
    member = load_i64(entry + _WORD * MEMBERS)
    last = member + RECORD_BYTES * load_i64(entry + _WORD * NUM_MEMBERS)
    kind = load_i64(member + _WORD * KIND)
    key, key_size = load_i64(entry + _WORD * HEAD) + 2, load_i64(entry + _WORD * HEAD_SIZE) - 2
    # Its size is known when it is written: write it beyond its place, then move it there.
    body = address + key_size + MAX_PREFIX_BYTES
    end = body
    while member < last:
        end = store_body(end, member, row)
        member += RECORD_BYTES
    size = end - body
    is_packed = kind != BYTES and size > 0
    list_size = size + (1 + varint_size(np.uint64(size)) if is_packed else 0)
    feature_size = 1 + varint_size(np.uint64(list_size)) + list_size
    entry_size = key_size + 1 + varint_size(np.uint64(feature_size)) + feature_size
    store_u8(address, np.uint64(0x0A))
    address = store_varint(address + 1, np.uint64(entry_size))
    copy_memory(address, key, key_size)
    address += key_size
    store_u8(address, np.uint64(0x12))
    address = store_varint(address + 1, np.uint64(feature_size))
    tag = 0x1A if kind == INT64 else (0x12 if kind == FLOAT else 0x0A)
    store_u8(address, np.uint64(tag))
    address = store_varint(address + 1, np.uint64(list_size))
    if is_packed:
        store_u8(address, np.uint64(0x0A))
        address = store_varint(address + 1, np.uint64(size))
    move_memory(address, body, size)
    return address + size


@compiled
def store_features(
    address: Integer, entries: Integer, num_entries: Integer, row: Integer
) -> Integer:
    """Write all entries of a row; return the address past them."""
    for entry in range(entries, entries + RECORD_BYTES * num_entries, RECORD_BYTES):
        if load_i64(entry + _WORD * OMITS_MISSING):
            member = load_i64(entry + _WORD * MEMBERS)
            if not is_valid(member, row):
                continue
            if load_i64(member + _WORD * WIDTH) == 0:
                end = store_scalar(address, entry, member, row)
                if end:
                    address = end
                    continue
        address = store_entry(address, entry, row)
    return address


@compiled
def masked(crc: Integer) -> Integer:
    """TFRecord's masking of a CRC32C."""
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return (rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)


@compiled
def mixed(crc: Integer, seed: Integer) -> Integer:
    """See `split.mixed`."""
    value = crc + seed
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def encode_rows(
    num_rows: Integer,
    entries: Integer,
    num_entries: Integer,
    group_crcs: Array,
    bounds: Array,
    seed: Integer,
    buffers: Array,
    lengths: Array,
    splits: Array,
) -> Array:
    """Encode rows and sort them into the buffers of their splits.

    Args:
        num_rows: rows in the batch.
        entries: address of the records of the entries.
        num_entries: number of them.
        group_crcs: uint64 [rows], or empty if the record's own CRC decides its split.
        bounds: uint64 [splits - 1], see `split.thresholds`.
        seed: of the split, as `split.mixed` adds it.
        buffers: int64 [splits], addresses; all are large enough for all rows.
        lengths: int64 [splits, rows], receives the bytes of every framed record.
        splits: uint8 [rows], receives the split of every row.

    Returns:
        int64 [2, splits]: bytes and records written by split.
    """
    written = np.zeros((2, len(buffers)), np.int64)
    start = buffers[0]
    size_width = 2
    for row in range(num_rows):
        data = start + FRAME_HEAD_BYTES
        body = data + 1 + size_width
        end = store_features(body, entries, num_entries, row)
        size = np.uint64(end - body)
        shift = varint_size(size) - size_width
        if shift:
            move_memory(body + shift, body, end - body)
            end += shift
            size_width += shift
        following = load_u64(data + 1 + size_width)  # the next store may reach into it
        store_u8(data, np.uint64(0x0A))
        store_varint(data + 1, size)
        store_u64(data + 1 + size_width, following)
        crc = crc32c(np.uint64(0), data, end - data)
        store_u64(start, np.uint64(end - data))
        store_u32(start + 8, masked(crc32c(np.uint64(0), start, 8)))
        store_u32(end, masked(crc))
        total = end + 4 - start
        hashed = mixed(group_crcs[row] if len(group_crcs) else crc, seed)
        split = 0
        while split < len(bounds) and hashed >= bounds[split]:
            split += 1
        lengths[split, written[1, split]] = total
        splits[row] = split
        if split:
            copy_memory(buffers[split] + written[0, split], start, total)
        else:
            start += total
        written[0, split] += total
        written[1, split] += 1
    return written
