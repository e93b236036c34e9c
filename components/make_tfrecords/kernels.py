"""The compiled pass over Arrow buffers: Example wire format, TFRecord framing, CRC32C and split, row by row.

Every value of a map entry has this form, with lengths as varints:

    0A <entry> 0A <name> name 12 <feature> TAG <list> body

where TAG 1A is an Int64List (body: 0A <size> varints), 12 a FloatList (body: 0A <size> floats) and 0A a BytesList
(body: 0A <size> bytes, for each value). See `encode_plain` for the same in plain Python.
"""

from typing import Any

import numpy as np

from components.make_tfrecords.jit import compiled
from components.make_tfrecords.machine import (
    copy_memory,
    crc32c,
    load_i32,
    load_u8,
    load_u32,
    load_u64,
    move_memory,
    store_u8,
    store_u32,
    store_u64,
)

INT64, FLOAT, BYTES = 0, 1, 2
FRAME_HEAD_BYTES, FRAME_BYTES = 12, 16
# Stores are done by whole words, which may reach this far beyond what they mean to write.
SLACK_BYTES = 32

# Rows of the table that describes a column ("member") to the kernel.
KIND, WIDTH, DATA, OFFSETS, DATA_END, VALIDITY, VALIDITY_OFFSET, FILL, FILL_SIZE = range(9)
# Rows of the table that describes a map entry: its key's bytes and its members.
KEY, KEY_SIZE, FIRST_MEMBER, LAST_MEMBER, OMITS_MISSING = range(5)

Table = np.ndarray[Any, Any]


@compiled
def varint_size(value: int) -> int:
    """Bytes of the varint of an unsigned value."""
    size = 1
    while value >= np.uint64(128):
        value >>= np.uint64(7)
        size += 1
    return size


@compiled
def store_varint(address: int, value: int) -> int:
    """Write the varint of an unsigned value; return the address past it."""
    while value >= np.uint64(128):
        store_u8(address, (value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        address += 1
    store_u8(address, value)
    return address + 1


@compiled
def copy_short(target: int, source: int, size: int, source_end: int) -> None:
    """Copy by words where the source allows to read them whole."""
    if size <= 16 and source + 16 <= source_end:
        store_u64(target, load_u64(source))
        if size > 8:
            store_u64(target + 8, load_u64(source + 8))
    else:
        copy_memory(target, source, size)


@compiled
def is_valid(members: Table, member: int, row: int) -> bool:
    """Whether a row of a column has a value."""
    bits = members[VALIDITY, member]
    if bits == 0:
        return True
    position = row + members[VALIDITY_OFFSET, member]
    return (load_u8(bits + (position >> 3)) >> np.uint64(position & 7)) & np.uint64(1) != 0


@compiled
def elements_of(members: Table, member: int, row: int, valid: bool) -> tuple[int, int]:
    """First element and number of elements of a row of a column."""
    width = members[WIDTH, member]
    if width == 0:
        return row, 1
    if not valid:
        return 0, max(width, 0)
    offsets = members[OFFSETS, member] + 4 * row
    first = load_i32(offsets)
    return first, load_i32(offsets + 4) - first


@compiled
def body_size(members: Table, member: int, row: int) -> int:
    """Bytes that a column adds to the body of its entry, without the size in front of a packed list."""
    valid = is_valid(members, member, row)
    first, count = elements_of(members, member, row, valid)
    kind = members[KIND, member]
    if kind == FLOAT:
        return 4 * count
    if kind == BYTES:
        size = members[FILL_SIZE, member]
        if valid:
            offsets = members[OFFSETS, member] + 4 * row
            size = load_i32(offsets + 4) - load_i32(offsets)
        return 1 + varint_size(np.uint64(size)) + size
    if not valid:
        return count * varint_size(np.uint64(members[FILL, member]))
    size = 0
    for index in range(first, first + count):
        size += varint_size(load_u64(members[DATA, member] + 8 * index))
    return size


@compiled
def store_body(address: int, members: Table, member: int, row: int) -> int:
    """Write what a column adds to the body of its entry; return the address past it."""
    valid = is_valid(members, member, row)
    first, count = elements_of(members, member, row, valid)
    kind = members[KIND, member]
    data, fill = members[DATA, member], members[FILL, member]
    if kind == FLOAT:
        for index in range(first, first + count):
            store_u32(address, load_u32(data + 4 * index) if valid else np.uint64(fill))
            address += 4
    elif kind == INT64:
        for index in range(first, first + count):
            address = store_varint(
                address, load_u64(data + 8 * index) if valid else np.uint64(fill)
            )
    else:
        source, size = fill, members[FILL_SIZE, member]
        if valid:
            offsets = members[OFFSETS, member] + 4 * row
            source = data + load_i32(offsets)
            size = load_i32(offsets + 4) - load_i32(offsets)
        store_u8(address, np.uint64(0x0A))
        address = store_varint(address + 1, np.uint64(size))
        copy_short(address, source, size, members[DATA_END, member])
        address += size
    return address


@compiled
def store_scalar(
    address: int, key: int, key_size: int, members: Table, member: int, row: int
) -> int:
    """Write the entry of one present scalar if all lengths in it are of one byte; else return 0."""
    kind, data = members[KIND, member], members[DATA, member]
    value, tag = np.uint64(0), np.uint64(0x0A)
    source = np.int64(0)
    if kind == INT64:
        value, tag = load_u64(data + 8 * row), np.uint64(0x1A)
        size = varint_size(value)
    elif kind == FLOAT:
        value, tag, size = load_u32(data + 4 * row), np.uint64(0x12), 4
    else:
        offsets = members[OFFSETS, member] + 4 * row
        source = data + load_i32(offsets)
        size = load_i32(offsets + 4) - load_i32(offsets)
    entry_size = key_size + 6 + size
    if entry_size >= 128:
        return 0
    store_u8(address, np.uint64(0x0A))
    store_u8(address + 1, np.uint64(entry_size))
    for word in range(0, key_size, 8):
        store_u64(address + 2 + word, load_u64(key + word))
    address += 2 + key_size
    length = np.uint64(size)
    head = (
        np.uint64(0x12)
        | (length + np.uint64(4)) << np.uint64(8)
        | tag << np.uint64(16)
        | (length + np.uint64(2)) << np.uint64(24)
        | np.uint64(0x0A) << np.uint64(32)
        | length << np.uint64(40)
    )
    store_u64(address, head)
    address += 6
    if kind == INT64:
        return store_varint(address, value)
    if kind == FLOAT:
        store_u32(address, value)
    else:
        copy_short(address, source, size, members[DATA_END, member])
    return address + size


@compiled
def store_entry(address: int, entries: Table, entry: int, members: Table, row: int) -> int:
    """Write one entry of the map of features; return the address past it."""
    first, last = entries[FIRST_MEMBER, entry], entries[LAST_MEMBER, entry]
    key, key_size = entries[KEY, entry], entries[KEY_SIZE, entry]
    if entries[OMITS_MISSING, entry]:
        if not is_valid(members, first, row):
            return address
        if members[WIDTH, first] == 0:
            end = store_scalar(address, key, key_size, members, first, row)
            if end:
                return end
    size = 0
    for member in range(first, last):
        size += body_size(members, member, row)
    kind = members[KIND, first]
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
    for member in range(first, last):
        address = store_body(address, members, member, row)
    return address


@compiled
def masked(crc: int) -> int:
    """TFRecord's masking of a CRC32C."""
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return (rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)


@compiled
def mixed(crc: int, seed: int) -> int:
    """See `split.mixed`."""
    value = crc + seed
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def encode_rows(
    num_rows: int,
    entries: Table,
    members: Table,
    group_crcs: Table,
    bounds: Table,
    seed: int,
    buffers: Table,
    lengths: Table,
    splits: Table,
) -> Table:
    """Encode rows and sort them into the buffers of their splits.

    Args:
        num_rows: rows in the batch.
        entries: int64 [5, entries], see the names of its rows above.
        members: int64 [9, members], likewise.
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
    length_width = 2
    for row in range(num_rows):
        start = buffers[0] + written[0, 0]
        body = start + FRAME_HEAD_BYTES + 1 + length_width
        end = body
        for entry in range(entries.shape[1]):
            end = store_entry(end, entries, entry, members, row)
        size = np.uint64(end - body)
        if varint_size(size) != length_width:
            shift = varint_size(size) - length_width
            move_memory(body + shift, body, end - body)
            end += shift
            length_width += shift
        data = start + FRAME_HEAD_BYTES
        store_u8(data, np.uint64(0x0A))
        store_varint(data + 1, size)
        crc = crc32c(np.uint64(0), data, end - data)
        store_u64(start, np.uint64(end - data))
        store_u32(start + 8, masked(crc32c(np.uint64(0), start, 8)))
        store_u32(end, masked(crc))
        total = end + 4 - start
        hashed = mixed(group_crcs[row] if len(group_crcs) else crc, seed)
        split = 0
        while split < len(bounds) and hashed >= bounds[split]:
            split += 1
        if split:
            copy_memory(buffers[split] + written[0, split], start, total)
        lengths[split, written[1, split]] = total
        splits[row] = split
        written[0, split] += total
        written[1, split] += 1
    return written
