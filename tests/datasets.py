"""Small committed datasets for tests of the steps that read one."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from components.contracts.dataset import (
    MANIFEST_NAME,
    SCHEMA_NAME,
    Dataset,
    Feature,
    Schema,
    Shard,
    Statistics,
    manifest_body,
    open_dataset,
)
from components.storage.commit import commit
from components.storage.open import open_store


def commit_binary_dataset(uri, *, num_train=600, num_eval=200, num_shards=3, seed=0):
    """Two float columns and a label that follows from them; returns the opened Dataset."""
    generator = np.random.default_rng(seed)
    files, shards = {}, []
    for split, count in (("train", num_train), ("eval", num_eval)):
        x = generator.normal(size=(count, 2)).astype(np.float32)
        y = (x[:, 0] - x[:, 1] + 0.3 * generator.normal(size=count) > 0).astype(int)
        for index, rows in enumerate(np.array_split(np.arange(count), num_shards)):
            records = [_example(x[row], y[row]) for row in rows]
            name = f"{split}-{index:05d}-of-{num_shards:05d}"
            data, offsets = _framed(records)
            files[f"{name}.tfrecord"] = data
            files[f"{name}.index"] = np.array(offsets, "<u8").tobytes()
            shards.append(
                Shard(
                    name=f"{name}.tfrecord",
                    index_name=f"{name}.index",
                    split=split,
                    num_records=len(records),
                )
            )
    statistics = Statistics(count=num_train, variance=1.0, minimum=-4.0, maximum=4.0)
    schema = Schema(
        features=tuple(
            Feature(name=name, kind="float", statistics=statistics) for name in ("a", "b")
        ),
        label=Feature(name="label", kind="int64"),
        task="binary",
        classes=("0", "1"),
    )
    files[SCHEMA_NAME] = json.dumps(schema.to_json()).encode()
    dataset = Dataset(
        uri=str(uri),
        schema=schema,
        layout="columns",
        compression="",
        shards=tuple(shards),
        files={},
        fingerprint=f"test-{seed}-{num_train}",
        num_rows=num_train + num_eval,
        num_rejected=0,
    )
    store = open_store(str(uri))
    commit(store, MANIFEST_NAME, files, manifest_body(dataset, writer="test"))
    return open_dataset(store)


def _example(x, y):
    features = {
        "a": tf.train.Feature(float_list=tf.train.FloatList(value=[x[0]])),
        "b": tf.train.Feature(float_list=tf.train.FloatList(value=[x[1]])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _framed(records):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shard")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        offsets = [0]
        for record in records:
            offsets.append(offsets[-1] + len(record) + 16)
        return path.read_bytes(), offsets
