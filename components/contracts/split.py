"""Reading a split from its beginning to its end, in the order of its files.

Agreed between evaluate_model and export_model, which both need the same first rows. Training reads
records at random by the shards' indices instead.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from components.contracts.dataset import CONVERT_AGAIN, Dataset, Shard
from components.contracts.errors import InputError, RelayError
from components.storage.base import Store, crc32c_of_file
from components.storage.commit import fetch
from components.storage.errors import CorruptObjectError, ObjectNotFoundError
from components.storage.local import LocalStore

# Shards of a remote store that lie on the disk at once: one is read, one waits, one is fetched.
_SHARDS_ON_DISK = 3


class SplitReader:
    """The records of some shards of a dataset, as batches of serialized Examples."""

    def __init__(
        self, store: Store, dataset: Dataset, shards: tuple[Shard, ...], cache: Path
    ) -> None:
        """`cache` is a directory for the shards of a remote store, a few at a time."""
        self._store = store
        self._dataset = dataset
        self._shards = tuple(shard for shard in shards if shard.num_records)
        self._cache = cache
        self._failure: RelayError | None = None

    @property
    def num_records(self) -> int:
        """What the manifest says."""
        return sum(shard.num_records for shard in self._shards)

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """Serialized Examples, strings of shape [batch]; the last batch of a shard may be smaller.

        Batches are made before shards are joined: an operation a batch costs nothing, one a record
        costs more than reading it.
        """
        paths = tf.data.Dataset.from_generator(
            self._paths, output_signature=tf.TensorSpec((), tf.string)
        )
        compression = self._dataset.compression
        return paths.prefetch(1).flat_map(
            lambda path: tf.data.TFRecordDataset(path, compression).batch(batch_size)
        )

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Turn what goes wrong while iterating into an error that names the damaged shard.

        Raises:
            InputError: a shard is missing, cut short or damaged.
        """
        try:
            yield
        except tf.errors.DataLossError as error:
            self._raise_for_damage(str(error))
        if self._failure is not None:
            raise self._failure

    def _paths(self) -> Iterator[str]:
        fetched: list[Path] = []
        for shard in self._shards:
            try:
                path = self._localized(shard)
            except RelayError as error:  # tf.data would hide it behind an UnknownError
                self._failure = error
                return
            fetched.append(path)
            if len(fetched) > _SHARDS_ON_DISK and path.parent == self._cache:
                fetched.pop(0).unlink(missing_ok=True)
            yield str(path)

    def _localized(self, shard: Shard) -> Path:
        if isinstance(self._store, LocalStore):
            return Path(self._store.uri_of(shard.name))
        path = self._cache / shard.name
        try:
            fetch(self._store, self._dataset.files[shard.name], path)
        except (CorruptObjectError, ObjectNotFoundError) as error:
            raise InputError(f"the dataset is damaged: {error}. {CONVERT_AGAIN}") from error
        return path

    def _raise_for_damage(self, what: str) -> None:
        for shard in self._shards:
            file = self._dataset.files[shard.name]
            path = self._localized(shard)
            if path.stat().st_size != file.size or crc32c_of_file(path) != file.crc32c:
                raise InputError(
                    f"{self._store.uri_of(shard.name)} is damaged: its bytes do not have the "
                    f"CRC32C in the manifest ({what}). {CONVERT_AGAIN}"
                )
        raise InputError(f"a shard of {self._dataset.uri} cannot be read: {what}. {CONVERT_AGAIN}")
