"""Batches as a pure function of (seed, epoch, step): a global shuffle by random access."""

import contextlib
import functools
import gzip
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from components.contracts.dataset import Dataset, Shard
from components.contracts.errors import InputError
from components.contracts.examples import parse_batch
from components.contracts.preprocessing import DefaultPreprocessing
from components.contracts.user_model import Preprocess
from components.storage.base import Store
from components.storage.cache import ShardCache
from components.storage.errors import CorruptObjectError
from components.storage.local import LocalStore
from components.train_model.worker.permutation import permuted

# A TFRecord is: length (8 bytes), its masked CRC (4), data, masked CRC of the data (4).
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_CRC_MASK_DELTA = 0xA282EAD8
_FOOTER = struct.Struct("<I")
# Positions are permuted in blocks: a block costs little more than a single batch.
_BLOCK = 1 << 16


class RecordReader:
    """Random access to the records of one split, whose shards lie on this machine's disk."""

    def __init__(
        self,
        store: Store,
        dataset: Dataset,
        split: str,
        cache: Path,
        fetched: Callable[[], None] = lambda: None,
    ) -> None:
        """Fetch into `cache` what is not local, and call `fetched` after each shard.

        Raises:
            InputError, CorruptObjectError: the split or one of its files is not usable.
        """
        self._held = contextlib.ExitStack()  # cached shards stay for as long as this process
        self._paths: list[Path] = []
        self._maps: list[mmap.mmap] = []
        self._offsets: list[NDArray[np.uint64]] = []
        counts = [0]
        for shard in dataset.shards_of(split):
            if shard.num_records == 0:
                continue
            path, offsets = self._localized(store, dataset, shard, cache)
            if len(offsets) != shard.num_records + 1:
                raise CorruptObjectError(
                    f"{store.uri_of(shard.index_name)} has {len(offsets) - 1} offsets, "
                    f"the manifest says {shard.num_records} records"
                )
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._paths.append(path)
            self._offsets.append(offsets)
            counts.append(counts[-1] + shard.num_records)
            fetched()
        self._starts = np.array(counts, np.int64)

    def _localized(
        self, store: Store, dataset: Dataset, shard: Shard, folder: Path
    ) -> tuple[Path, NDArray[np.uint64]]:
        """A shard's uncompressed file on this disk, and the offsets of its records."""
        paths = []
        for name in (shard.name, shard.index_name):
            if isinstance(store, LocalStore):
                paths.append(Path(store.uri_of(name)))
            else:
                opened = ShardCache(folder).open(store, dataset.files[name])
                paths.append(self._held.enter_context(opened))
        if not dataset.compression:
            return paths[0], np.fromfile(paths[1], "<u8")
        folder.mkdir(parents=True, exist_ok=True)
        plain = folder / f"{os.getpid()}-{shard.name}"
        data = gzip.decompress(paths[0].read_bytes())
        plain.write_bytes(data)
        return plain, _scanned(data)

    @property
    def num_records(self) -> int:
        """Records in the split."""
        return int(self._starts[-1])

    def read(self, records: NDArray[np.int64]) -> NDArray[np.object_]:
        """Read records by number.

        Args:
            records: numbers in [0, num_records), shape [n].

        Returns:
            Serialized Examples, bytes objects, shape [n].

        Raises:
            CorruptObjectError: a record's bytes do not have its CRC; names file and record.
        """
        shards = np.searchsorted(self._starts, records, side="right") - 1
        found = np.empty(len(records), object)
        for shard in np.unique(shards):
            places = np.flatnonzero(shards == shard)
            found[places] = self._read_shard(int(shard), records[places] - self._starts[shard])
        return found

    def _read_shard(self, shard: int, records: NDArray[np.int64]) -> list[bytes]:
        page, offsets = self._maps[shard], self._offsets[shard]
        found = []
        for begin, end in zip(
            offsets[records].tolist(), offsets[records + 1].tolist(), strict=True
        ):
            data = page[begin + _HEADER_BYTES : end - _FOOTER_BYTES]
            crc = google_crc32c.value(data)
            masked = (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xFFFFFFFF
            if _FOOTER.unpack_from(page, end - _FOOTER_BYTES)[0] != masked:
                raise CorruptObjectError(
                    f"{self._paths[shard]}: the record at byte {begin} is damaged (CRC32C differs)"
                )
            found.append(data)
        return found


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which records make up which step.

    Attributes:
        num_records: of the split.
        batch_size: examples of a step over all workers.
        workers: number of workers.
        worker: index of this one.
        accumulation: micro-batches of a worker in a step.
        seed: of the shuffle.
    """

    num_records: int
    batch_size: int
    workers: int
    worker: int
    accumulation: int
    seed: int

    def __post_init__(self) -> None:
        """Raises InputError if the split does not fill one batch."""
        if self.num_records < self.batch_size:
            raise InputError(
                f"the training split has {self.num_records} examples, fewer than batch_size "
                f"{self.batch_size}: lower batch_size or add data"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch; the rest, other records each time, is left out."""
        return self.num_records // self.batch_size

    @property
    def micro_batch_size(self) -> int:
        """Examples of one forward pass."""
        return self.batch_size // self.workers // self.accumulation

    def records(self, micro_step: int) -> NDArray[np.int64]:
        """Record numbers of this worker's micro-batch; step = micro_step // accumulation."""
        step, micro = divmod(micro_step, self.accumulation)
        epoch, index = divmod(step, self.steps_per_epoch)
        start = index * self.batch_size + self.worker * (self.batch_size // self.workers)
        first = start + micro * self.micro_batch_size
        last = first + self.micro_batch_size
        blocks = [
            _permuted_block(self.num_records, self.seed, epoch, block)
            for block in range(first // _BLOCK, (last - 1) // _BLOCK + 1)
        ]
        skipped = first // _BLOCK * _BLOCK
        return np.concatenate(blocks)[first - skipped : last - skipped]


@functools.lru_cache(maxsize=8)
def _permuted_block(size: int, seed: int, epoch: int, block: int) -> NDArray[np.int64]:
    positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, size), dtype=np.int64)
    return permuted(positions, size, seed, epoch)


def training_batches(
    reader: RecordReader,
    plan: BatchPlan,
    dataset: Dataset,
    preprocess: Preprocess,
    steps: Sequence[int],
) -> tf.data.Dataset:
    """(x, y) micro-batches of this worker for the steps [steps[0], steps[1]), in order."""
    begin, end = (step * plan.accumulation for step in steps)
    numbers = tf.data.Dataset.range(begin, end)
    return _batches(
        numbers, lambda number: reader.read(plan.records(int(number))), dataset, preprocess
    )


def validation_batches(
    reader: RecordReader,
    dataset: Dataset,
    preprocess: Preprocess,
    *,
    batch_size: int,
    limit: int,
    share: tuple[int, int],
) -> tf.data.Dataset:
    """(x, y) batches of this worker's share of a split, in file order.

    Args:
        reader: of the split.
        dataset: it belongs to.
        preprocess: columns to model input.
        batch_size: examples of a batch; the last one may be smaller.
        limit: examples over all workers, 0 for all.
        share: (worker index, number of workers).
    """
    worker, workers = share
    total = min(limit or reader.num_records, reader.num_records)
    mine = np.arange(worker, total, workers, dtype=np.int64)
    numbers = tf.data.Dataset.range(0, len(mine), batch_size)
    return _batches(
        numbers,
        lambda first: reader.read(mine[int(first) : int(first) + batch_size]),
        dataset,
        preprocess,
    )


def labels_for_loss(labels: tf.Tensor, task: str) -> tf.Tensor:
    """Labels as the user's loss takes them: [batch] class indices, or float32 [batch, 1]."""
    return labels if task == "multiclass" else tf.expand_dims(tf.cast(labels, tf.float32), 1)


def _batches(
    numbers: tf.data.Dataset, read: Any, dataset: Dataset, preprocess: Preprocess
) -> tf.data.Dataset:
    if not isinstance(preprocess, DefaultPreprocessing):
        # A user's function may branch on tensors; ours need no AutoGraph, which takes seconds.
        preprocess = tf.function(preprocess)

    @tf.autograph.experimental.do_not_convert
    def fetched(number: tf.Tensor) -> tf.Tensor:
        # Not stateful, whatever it does inside: that is what lets a deterministic pipeline overlap.
        serialized = tf.numpy_function(read, [number], tf.string, stateful=False)
        return tf.ensure_shape(serialized, [None])

    @tf.autograph.experimental.do_not_convert
    def prepared(serialized: tf.Tensor) -> tuple[Any, tf.Tensor]:
        columns = parse_batch(serialized, dataset.schema, dataset.layout)
        labels = columns.pop(dataset.schema.label.name)
        return preprocess(columns), labels_for_loss(labels, dataset.schema.task)

    batches = numbers.map(fetched, num_parallel_calls=2, deterministic=True)
    batches = batches.map(prepared, num_parallel_calls=2, deterministic=True)
    return batches.prefetch(4)


def _scanned(data: bytes) -> NDArray[np.uint64]:
    offsets = [0]
    while offsets[-1] < len(data):
        length = int.from_bytes(data[offsets[-1] : offsets[-1] + 8], "little")
        offsets.append(offsets[-1] + _HEADER_BYTES + length + _FOOTER_BYTES)
    return np.array(offsets, np.uint64)
