"""Describes Arrow arrays to the compiled pass and keeps its buffers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.contracts.dataset import PACKED_FEATURES, Feature
from components.make_tfrecords import kernels
from components.make_tfrecords.encode import Encoded
from components.make_tfrecords.encode_plain import varint
from components.make_tfrecords.options import ConvertOptions
from components.make_tfrecords.split import seed_offset, thresholds

_KINDS = {
    "int64": kernels.INT64,
    "float": kernels.FLOAT,
    "string": kernels.BYTES,
    "bytes": kernels.BYTES,
    "image": kernels.BYTES,
}
# Bytes of an entry beside its key and its values, at most.
_ENTRY_BYTES = kernels.MAX_PREFIX_BYTES + kernels.SLACK_BYTES


class CompiledEncoder:
    """See `encode.RowEncoder`."""

    def __init__(self, features: Sequence[Feature], options: ConvertOptions) -> None:
        self._order, names = _grouped(features, packed=options.layout == "packed")
        self._features = [features[index] for index in self._order]
        self._heads = [_head(name) for name, _ in names]
        self._head_buffer = np.frombuffer(b"".join(map(_padded, self._heads)), np.uint8).copy()
        self._members = np.zeros((len(features), kernels.FIELDS), np.int64)
        self._entries = self._entry_table(names)
        self._fills = [_fill_of(feature) for feature in self._features]
        self._describe_features()
        self._bounds = thresholds(options.splits.values())
        self._seed = np.uint64(seed_offset(options.seed))
        self._buffers = [np.empty(0, np.uint8) for _ in options.splits]
        self._no_groups = np.zeros(0, np.uint64)

    def encode(
        self, columns: Sequence[pa.Array], group_crcs: npt.NDArray[np.uint32] | None
    ) -> Encoded:
        """See RowEncoder."""
        num_rows = len(columns[0])
        arrays = [columns[index] for index in self._order]
        for record, array in zip(self._members, arrays, strict=True):
            self._describe(record, array)
        self._make_room(self._bound(arrays))
        lengths = np.empty((len(self._buffers), num_rows), np.int64)
        splits = np.empty(num_rows, np.uint8)
        written = kernels.encode_rows(
            num_rows,
            self._entries.ctypes.data,
            len(self._entries),
            self._no_groups if group_crcs is None else group_crcs.astype(np.uint64),
            self._bounds,
            self._seed,
            np.array([buffer.ctypes.data for buffer in self._buffers], np.int64),
            lengths,
            splits,
        )
        sizes, counts = written.tolist()
        return Encoded(
            [memoryview(b.data)[:size] for b, size in zip(self._buffers, sizes, strict=True)],
            [lengths[index, :count] for index, count in enumerate(counts)],
            splits,
        )

    def _entry_table(self, names: Sequence[tuple[str, int]]) -> npt.NDArray[np.int64]:
        table = np.zeros((len(names), kernels.FIELDS), np.int64)
        member, position = 0, self._head_buffer.ctypes.data
        for record, head, (name, num_members) in zip(table, self._heads, names, strict=True):
            record[kernels.HEAD] = position
            record[kernels.HEAD_SIZE] = len(head)
            record[kernels.MEMBERS] = self._members[member].ctypes.data
            record[kernels.NUM_MEMBERS] = num_members
            record[kernels.OMITS_MISSING] = name == self._features[member].name
            position += len(_padded(head))
            member += num_members
        return table

    def _describe_features(self) -> None:
        for record, feature, fill in zip(self._members, self._features, self._fills, strict=True):
            is_list = feature.shape and feature.kind != "image"
            record[kernels.KIND] = _KINDS[feature.kind]
            record[kernels.WIDTH] = feature.shape[0] if is_list else 0
            if isinstance(fill, int):
                record[kernels.FILL] = fill
            else:
                record[kernels.FILL] = fill.ctypes.data
                record[kernels.FILL_SIZE] = len(fill) - kernels.SLACK_BYTES

    @staticmethod
    def _describe(record: npt.NDArray[np.int64], array: pa.Array) -> None:
        buffers, offset = array.buffers(), array.offset
        has_missing = array.null_count > 0 and buffers[0] is not None
        record[kernels.VALIDITY] = buffers[0].address if has_missing else 0
        record[kernels.VALIDITY_OFFSET] = offset
        width = 4 if record[kernels.KIND] == kernels.FLOAT else 8
        if pa.types.is_list(array.type):
            values = array.values
            record[kernels.OFFSETS] = buffers[1].address + 4 * offset
            record[kernels.DATA] = _address(values.buffers()[1]) + width * values.offset
        elif record[kernels.KIND] == kernels.BYTES:
            record[kernels.OFFSETS] = buffers[1].address + 4 * offset
            record[kernels.DATA] = _address(buffers[2])
            record[kernels.DATA_END] = _address(buffers[2]) + (buffers[2].size if buffers[2] else 0)
        else:
            record[kernels.DATA] = _address(buffers[1]) + width * offset

    def _bound(self, arrays: Sequence[pa.Array]) -> int:
        """Bytes that the records of the batch have at most."""
        num_rows = len(arrays[0])
        row = kernels.FRAME_BYTES + 8 + sum(_ENTRY_BYTES + len(head) for head in self._heads)
        total = num_rows * row + kernels.SLACK_BYTES
        for record, array in zip(self._members, arrays, strict=True):
            width = int(record[kernels.WIDTH])
            if width < 0:
                total += 10 * len(array.flatten())
            elif record[kernels.KIND] == kernels.BYTES:
                total += array.nbytes + num_rows * int(record[kernels.FILL_SIZE])
            else:
                total += 10 * num_rows * max(width, 1)
        return total

    def _make_room(self, size: int) -> None:
        if len(self._buffers[0]) < size:
            self._buffers = [np.empty(size, np.uint8) for _ in self._buffers]


def _head(name: str) -> bytes:
    """The bytes of an entry up to its name's end, its length left 0."""
    data = name.encode()
    return b"\x0a\x00\x0a" + varint(len(data)) + data


def _padded(head: bytes) -> bytes:
    """Room for a word to be read at any multiple of a word's size."""
    return head + bytes(8 + -len(head) % 8)


def _address(buffer: pa.Buffer | None) -> int:
    return buffer.address if buffer else 0


def _grouped(
    features: Sequence[Feature], *, packed: bool
) -> tuple[list[int], list[tuple[str, int]]]:
    """Order of the features by entry, and the entries by name with their number of features."""
    groups: dict[str, list[int]] = {}
    for index, feature in enumerate(features):
        alone = not packed or feature.kind == "image" or feature.shape == (-1,)
        groups.setdefault(feature.name if alone else PACKED_FEATURES[feature.kind], []).append(
            index
        )
    names = sorted(groups, key=str.encode)
    order = [index for name in names for index in groups[name]]
    return order, [(name, len(groups[name])) for name in names]


def _fill_of(feature: Feature) -> int | npt.NDArray[np.uint8]:
    """Bits of a number, or bytes, that a missing value is written as."""
    value = feature.missing_value
    if feature.kind == "int64":
        return int(value or 0)
    if feature.kind == "float":
        return int(np.array(np.nan if value is None else value, np.float32).view(np.uint32))
    return np.frombuffer(str(value or "").encode() + bytes(kernels.SLACK_BYTES), np.uint8).copy()
