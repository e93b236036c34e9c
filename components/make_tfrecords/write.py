"""One shard: records appended to a local file, their offsets beside it.

Both uploaded when complete.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.contracts.dataset import Shard
from components.storage.base import Store
from components.storage.commit import CommittedFile, put

GZIP_LEVEL = 6
_GZIP_FORMAT = 31


class ShardWriter:
    """Writes `<split>-<index>-of-<count>.tfrecord` and its index file."""

    def __init__(self, folder: Path, split: str, index: int, count: int, compression: str) -> None:
        name = f"{split}-{index:05d}-of-{count:05d}"
        self._split = split
        self._record_path = folder / f"{name}.tfrecord"
        self._index_path = folder / f"{name}.index"
        self._file = self._record_path.open("wb", buffering=0)
        self._deflate = (
            zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT) if compression else None
        )
        self._lengths: list[npt.NDArray[np.int64]] = []
        self.num_records = 0

    def write(self, records: Any, lengths: npt.NDArray[np.int64]) -> None:
        """Append framed records, given as one buffer and the length of each."""
        self._lengths.append(lengths)
        self.num_records += len(lengths)
        self._write(self._deflate.compress(records) if self._deflate else records)

    def finish(self, store: Store) -> tuple[Shard, list[CommittedFile]] | None:
        """Complete both files and upload them.

        None for a shard without records, which is not written.
        """
        if self._deflate:
            self._write(self._deflate.flush())
        self._file.close()
        if not self.num_records:
            self._record_path.unlink()
            return None
        offsets = b"" if self._deflate else self._offsets()
        self._index_path.write_bytes(offsets)
        files = [
            put(store, path.name, path, move=True) for path in (self._record_path, self._index_path)
        ]
        for path in (self._record_path, self._index_path):
            path.unlink(missing_ok=True)
        shard = Shard(
            name=self._record_path.name,
            index_name=self._index_path.name,
            split=self._split,
            num_records=self.num_records,
        )
        return shard, files

    def close(self) -> None:
        """Close the file, whether or not the shard was completed."""
        self._file.close()

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            error.filename = error.filename or str(self._record_path)
            raise

    def _offsets(self) -> bytes:
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self._lengths]))
        return ends.astype("<u8").tobytes()
