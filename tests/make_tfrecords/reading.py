"""Reads converted datasets back as their consumers do."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from components.contracts.dataset import Dataset
from components.contracts.examples import parse_batch


def records(dataset: Dataset, split: str) -> list[bytes]:
    """Serialized Examples of a split in order, read by TensorFlow, which checks every CRC."""
    paths = [str(Path(dataset.uri, shard.name)) for shard in dataset.shards_of(split)]
    reader = tf.data.TFRecordDataset(paths, compression_type=dataset.compression)
    return list(reader.as_numpy_iterator())


def columns(dataset: Dataset, split: str) -> dict[str, np.ndarray]:
    """Columns of a split as the trainer parses them."""
    parsed = parse_batch(tf.constant(records(dataset, split)), dataset.schema, dataset.layout)
    return {name: to_numpy(values) for name, values in parsed.items()}


def rows(dataset: Dataset) -> list[dict]:
    """All rows of all splits, values as Python objects."""
    found = []
    for split in dataset.splits:
        table = {name: values.tolist() for name, values in columns(dataset, split).items()}
        found += [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return found


def to_numpy(values) -> np.ndarray:
    if isinstance(values, tf.RaggedTensor):
        return np.array([*map(tuple, values.to_list()), None], object)[:-1]
    return values.numpy()
