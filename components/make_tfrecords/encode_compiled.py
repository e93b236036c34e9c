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
_ENTRY_BYTES = 32


class CompiledEncoder:
    """See `encode.RowEncoder`."""

    def __init__(self, features: Sequence[Feature], options: ConvertOptions) -> None:
        self._order, names = _grouped(features, packed=options.layout == "packed")
        self._features = [features[index] for index in self._order]
        self._keys = [b"\x0a" + varint(len(key)) + key for key in (n.encode() for n, _ in names)]
        self._key_buffer = np.frombuffer(
            b"".join(key + bytes(8) for key in self._keys), np.uint8
        ).copy()
        self._entries = self._entry_table(names)
        self._members = np.zeros((9, len(features)), np.int64)
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
        for member, array in enumerate(arrays):
            self._describe(member, array)
        self._make_room(self._bound(arrays))
        lengths = np.empty((len(self._buffers), num_rows), np.int64)
        splits = np.empty(num_rows, np.uint8)
        written = kernels.encode_rows(
            num_rows,
            self._entries,
            self._members,
            self._no_groups if group_crcs is None else group_crcs.astype(np.uint64),
            self._bounds,
            self._seed,
            np.array([buffer.ctypes.data for buffer in self._buffers], np.int64),
            lengths,
            splits,
        )
        sizes, counts = written.tolist()
        return Encoded(
            [memoryview(b)[:size] for b, size in zip(self._buffers, sizes, strict=True)],
            [lengths[index, :count] for index, count in enumerate(counts)],
            splits,
        )

    def _entry_table(self, names: Sequence[tuple[str, int]]) -> npt.NDArray[np.int64]:
        table = np.zeros((5, len(names)), np.int64)
        member, position = 0, self._key_buffer.ctypes.data
        for entry, (name, num_members) in enumerate(names):
            table[kernels.KEY, entry] = position
            table[kernels.KEY_SIZE, entry] = len(self._keys[entry])
            table[kernels.FIRST_MEMBER, entry] = member
            table[kernels.LAST_MEMBER, entry] = member + num_members
            table[kernels.OMITS_MISSING, entry] = name == self._features[member].name
            position += len(self._keys[entry]) + 8
            member += num_members
        return table

    def _describe_features(self) -> None:
        for member, feature in enumerate(self._features):
            is_list = feature.shape and feature.kind != "image"
            self._members[kernels.KIND, member] = _KINDS[feature.kind]
            self._members[kernels.WIDTH, member] = feature.shape[0] if is_list else 0
            fill = self._fills[member]
            if isinstance(fill, int):
                self._members[kernels.FILL, member] = fill
            else:
                self._members[kernels.FILL, member] = fill.ctypes.data
                self._members[kernels.FILL_SIZE, member] = len(fill) - kernels.SLACK_BYTES

    def _describe(self, member: int, array: pa.Array) -> None:
        table, offset = self._members, array.offset
        buffers = array.buffers()
        has_missing = array.null_count > 0 and buffers[0] is not None
        table[kernels.VALIDITY, member] = buffers[0].address if has_missing else 0
        table[kernels.VALIDITY_OFFSET, member] = offset
        width = 4 if table[kernels.KIND, member] == kernels.FLOAT else 8
        if pa.types.is_list(array.type):
            table[kernels.OFFSETS, member] = buffers[1].address + 4 * offset
            values = array.values
            data = values.buffers()[1]
            table[kernels.DATA, member] = (data.address if data else 0) + width * values.offset
        elif table[kernels.KIND, member] == kernels.BYTES:
            table[kernels.OFFSETS, member] = buffers[1].address + 4 * offset
            table[kernels.DATA, member] = buffers[2].address if buffers[2] else 0
            table[kernels.DATA_END, member] = (
                buffers[2].address + buffers[2].size if buffers[2] else 0
            )
        else:
            table[kernels.DATA, member] = buffers[1].address + width * offset

    def _bound(self, arrays: Sequence[pa.Array]) -> int:
        """Bytes that the records of the batch have at most."""
        num_rows = len(arrays[0])
        row = kernels.FRAME_BYTES + 8 + sum(_ENTRY_BYTES + len(key) for key in self._keys)
        total = num_rows * row + kernels.SLACK_BYTES
        for member, array in enumerate(arrays):
            width = int(self._members[kernels.WIDTH, member])
            if width < 0:
                total += 10 * len(array.flatten())
            elif self._members[kernels.KIND, member] == kernels.BYTES:
                total += array.nbytes + num_rows * (
                    8 + int(self._members[kernels.FILL_SIZE, member])
                )
            else:
                total += 10 * num_rows * max(width, 1)
        return total

    def _make_room(self, size: int) -> None:
        if len(self._buffers[0]) < size:
            self._buffers = [np.empty(size, np.uint8) for _ in self._buffers]


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
