"""Committed datasets of any columns, and training runs of really trained small models."""

import json
import math
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from components.contracts.checkpoint import (
    CheckpointInfo,
    commit_checkpoint,
    numbered,
    write_state,
)
from components.contracts.dataset import (
    MANIFEST_NAME,
    PACKED_FEATURES,
    SCHEMA_NAME,
    Dataset,
    Feature,
    Schema,
    Shard,
    Statistics,
    manifest_body,
    open_dataset,
)
from components.contracts.examples import labels_for_loss, parse_batch
from components.contracts.trained_model import compute_policy, full_precision_outputs
from components.contracts.training_run import (
    COMPLETE_NAME,
    RUN_NAME,
    Completion,
    TrainingRun,
    to_json_bytes,
)
from components.contracts.user_model import load_user_model
from components.storage.commit import commit
from components.storage.open import open_store

MISSING_INT = -(2**63)


def float_feature(name, values, *, nullable=False, shape=()):
    finite = np.array([v for v in np.ravel(values) if v is not None and math.isfinite(v)])
    counts, edges = np.histogram(finite, 32)
    return Feature(
        name=name,
        kind="float",
        shape=shape,
        nullable=nullable,
        missing_value=math.nan if nullable else None,
        statistics=Statistics(
            count=len(finite),
            missing=len(np.ravel(values)) - len(finite),
            mean=float(finite.mean()),
            variance=float(finite.var()),
            minimum=float(finite.min()),
            maximum=float(finite.max()),
            histogram=(tuple(edges.tolist()), tuple(counts.tolist())),
        ),
    )


def int_feature(name, values, *, nullable=False):
    present = np.array([value for value in values if value is not None], np.int64)
    counts, edges = np.histogram(present, 32)
    return Feature(
        name=name,
        kind="int64",
        nullable=nullable,
        missing_value=MISSING_INT if nullable else None,
        statistics=Statistics(
            count=len(present),
            missing=len(values) - len(present),
            mean=float(present.mean()),
            variance=float(present.var()),
            minimum=int(present.min()),
            maximum=int(present.max()),
            histogram=(tuple(edges.tolist()), tuple(counts.tolist())),
        ),
    )


def string_feature(name, values):
    present = [value for value in values if value is not None]
    words, counts = np.unique(present, return_counts=True)
    ordered = sorted(zip(words.tolist(), counts.tolist(), strict=True), key=lambda p: (-p[1], p[0]))
    return Feature(
        name=name,
        kind="string",
        nullable=len(present) < len(values),
        missing_value="",
        statistics=Statistics(
            count=len(present),
            missing=len(values) - len(present),
            vocabulary=tuple(ordered),
            num_distinct=len(words),
        ),
    )


def commit_rows(
    uri, schema, splits, *, num_shards=2, layout="columns", compression="", tag="", copies=1
):
    """Commit a dataset of rows, {split: [{column: value or None}]}; returns it opened.

    With `copies` every shard holds its rows so many times, for large datasets made quickly.
    """
    files, shards = {}, []
    for split, rows in splits.items():
        for index, part in enumerate(np.array_split(np.arange(len(rows)), num_shards)):
            name = f"{split}-{index:05d}-of-{num_shards:05d}"
            records = [serialized(schema, rows[row], layout) for row in part] * copies
            data, offsets = _framed(records, compression)
            files[f"{name}.tfrecord"] = data
            files[f"{name}.index"] = b"" if compression else np.array(offsets, "<u8").tobytes()
            shards.append(
                Shard(
                    name=f"{name}.tfrecord",
                    index_name=f"{name}.index",
                    split=split,
                    num_records=len(records),
                )
            )
    files[SCHEMA_NAME] = json.dumps(schema.to_json()).encode()
    total = sum(map(len, splits.values())) * copies
    dataset = Dataset(
        uri=str(uri),
        schema=schema,
        layout=layout,
        compression=compression,
        shards=tuple(shards),
        files={},
        fingerprint=f"rows-{total}-{layout}{tag}",
        num_rows=total,
        num_rejected=0,
    )
    store = open_store(str(uri))
    commit(store, MANIFEST_NAME, files, manifest_body(dataset, writer="test"))
    return open_dataset(store)


def serialized(schema, row, layout="columns"):
    """One Example; a value of None is missing."""
    features = {}
    for column in [*schema.features, schema.label]:
        value = row[column.name]
        key = column.name
        if layout == "packed" and column.kind != "image":
            key = PACKED_FEATURES[column.kind]
            value = column.missing_value if value is None else value
        if value is None:
            continue
        values = np.ravel(value).tolist() if not isinstance(value, str | bytes) else [value]
        values = [v.encode() if isinstance(v, str) else v for v in values]
        if values:
            features[key] = features.get(key, []) + values
    return tf.train.Example(
        features=tf.train.Features(feature={k: _feature(v) for k, v in features.items()})
    ).SerializeToString()


def _feature(values):
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _framed(records, compression):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shard")
        with tf.io.TFRecordWriter(str(path), compression or None) as writer:
            for record in records:
                writer.write(record)
        offsets = [0]
        for record in records:
            offsets.append(offsets[-1] + len(record) + 16)
        return path.read_bytes(), offsets


def delays(count, *, seed=0):
    """Rows like a small flights table, and the schema made from them."""
    random = np.random.default_rng(seed)
    carrier = random.choice(["UA", "AA", "DL", "B6"], count, p=[0.4, 0.3, 0.2, 0.1])
    hour = random.integers(5, 23, count)
    wind = random.gamma(2.0, 4.0, count)
    logit = 0.35 * (hour - 14) + 0.15 * (wind - 8) + np.where(carrier == "B6", 1.0, 0.0)
    label = (logit + random.logistic(size=count) > 0).astype(int)
    rows = [
        {
            "carrier": None if random.random() < 0.02 else str(carrier[i]),
            "hour": None if random.random() < 0.03 else int(hour[i]),
            "wind": None if random.random() < 0.05 else float(np.float32(wind[i])),
            "late": int(label[i]),
        }
        for i in range(count)
    ]
    return rows, delays_schema(rows)


def delays_schema(rows):
    return Schema(
        features=(
            string_feature("carrier", [row["carrier"] for row in rows]),
            int_feature("hour", [row["hour"] for row in rows], nullable=True),
            float_feature("wind", [row["wind"] for row in rows], nullable=True),
        ),
        label=Feature(name="late", kind="int64"),
        task="binary",
        classes=("no", "yes"),
    )


def commit_delays(uri, *, num_train=1500, num_eval=600, **options):
    rows, schema = delays(num_train + num_eval)
    splits = {"train": rows[:num_train], "eval": rows[num_train:]}
    return commit_rows(uri, schema, splits, **options)


def commit_run(
    uri,
    dataset,
    module,
    *,
    hyperparameters=None,
    epochs=3,
    mixed_precision="none",
    step=None,
    history=True,
    validated=True,
    spoil=None,
):
    """Train the module's model on the dataset with fit, and commit it as a finished run."""
    hyperparameters = hyperparameters or {}
    keras.utils.set_random_seed(1)
    user = load_user_model(module)
    preprocess = user.preprocessing(dataset.schema)
    with compute_policy(mixed_precision):
        model = user.build(dataset.schema, hyperparameters)
    full_precision_outputs(model)
    steps = -(-dataset.splits["train"] // 64)
    training = batches(dataset, "train", preprocess).repeat()
    model.fit(training, epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0)
    if spoil is not None:
        spoil(model)
    metrics = {}
    if validated:
        validation = batches(dataset, "eval", preprocess)
        count = -(-dataset.splits["eval"] // 64)
        found = model.evaluate(validation, steps=count, verbose=0, return_dict=True)
        metrics = {f"val_{name}": float(value) for name, value in found.items()}
    step = step or epochs * steps
    store = open_store(str(uri))
    run = TrainingRun(
        model_module=module,
        hyperparameters=hyperparameters,
        dataset_uri=dataset.uri,
        dataset_fingerprint=dataset.fingerprint,
        fingerprint=f"run-{module}-{dataset.fingerprint}",
        options={
            "mixed_precision": mixed_precision,
            "validation_split": "eval",
            "validation_examples": 0,
        },
        versions={"tensorflow": tf.__version__},
    )
    store.write(RUN_NAME, to_json_bytes(run))
    info = CheckpointInfo(step=step, fingerprint=run.fingerprint, incarnation=1, metrics=metrics)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        arrays = {
            name: np.array(variable.numpy())
            for name, variable in numbered("model", model.variables)
        }
        write_state(path, arrays)
        commit_checkpoint(store, info, path, writer="test")
    store.write(COMPLETE_NAME, to_json_bytes(completion(step, epochs, metrics)))
    return model


def completion(step, epochs, metrics):
    """How a run with two restarts might have ended."""
    start = 1_780_000_000.0
    history = [
        {
            "step": 1 + index * step // 40,
            "time": start + index,
            "loss": 0.7 * math.exp(-index / 12) + 0.3 + 0.02 * math.sin(index * 2.1),
            "learning_rate": 0.01 * (1 - index / 44),
        }
        for index in range(40)
    ]
    for epoch in range(1, epochs + 1):
        values = {name: 0.3 + 0.5 / epoch for name in metrics} or {"val_loss": 0.3 + 0.5 / epoch}
        history.append({"step": epoch * step // epochs, "time": start + 13 * epoch, **values})
    return Completion(
        step=step,
        num_epochs=epochs,
        reason="all steps done",
        num_workers=2,
        num_restarts=2,
        goodput={
            "productive": 61.0,
            "start_up": 9.5,
            "data_wait": 3.2,
            "checkpoint_wait": 1.1,
            "restore": 0.8,
            "lost": 4.4,
            "stalled": 0.0,
        },
        history=tuple(history),
        restarts=(
            {"step": step // 3, "time": start + 14, "worker": 1, "cause": "killed by signal 9"},
            {"step": step // 2, "time": start + 22, "worker": 0, "cause": "no progress for 60 s"},
        ),
    )


def batches(dataset, split, preprocess, batch_size=64):
    """(x, y) batches as training makes them."""
    paths = [str(Path(dataset.uri, shard.name)) for shard in dataset.shards_of(split)]

    def prepare(records):
        columns = parse_batch(records, dataset.schema, dataset.layout)
        labels = columns.pop(dataset.schema.label.name)
        return preprocess(columns), labels_for_loss(labels, dataset.schema)

    return (
        tf.data.TFRecordDataset(paths, compression_type=dataset.compression)
        .batch(batch_size)
        .map(prepare)
    )


def commit_shapes(uri, *, count=900, seed=1):
    """Small images of three shapes and a column of text: a multi-class dataset."""
    random = np.random.default_rng(seed)
    names = ("bar", "dot", "ring")
    rows = []
    for _ in range(count):
        label = int(random.integers(3))
        rows.append(
            {
                "image": _shape_png(names[label], random),
                "camera": str(random.choice(["left", "right"])),
                "shape": label,
            }
        )
    schema = Schema(
        features=(
            Feature(name="image", kind="image", shape=(8, 8, 1), source_type="png"),
            string_feature("camera", [row["camera"] for row in rows]),
        ),
        label=Feature(name="shape", kind="int64"),
        task="multiclass",
        classes=names,
    )
    cut = count * 2 // 3
    return commit_rows(uri, schema, {"train": rows[:cut], "eval": rows[cut:]})


def _shape_png(name, random):
    pixels = random.integers(0, 130, (8, 8, 1))
    if name == "bar":
        pixels[:, random.integers(8)] += 110
    elif name == "dot":
        y, x = random.integers(1, 6, 2)
        pixels[y : y + 2, x : x + 2] += 110
    else:
        pixels[[1, 6], 1:7] += 110
        pixels[1:7, [1, 6]] += 110
    return tf.io.encode_png(pixels.clip(0, 255).astype(np.uint8)).numpy()


def commit_prices(uri, *, count=1200, seed=2):
    """A regression with a list of fixed length, one of variable length, and text."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        size, town = float(random.gamma(4, 25)), str(random.choice(["north", "south"]))
        rooms = random.integers(1, 40, random.integers(0, 5)).tolist()
        place = random.normal(size=2).astype(np.float32)
        price = 2000 * size + 300 * sum(rooms) + 20000 * place[0] + random.normal() * 20000
        rows.append(
            {
                "size": size,
                "town": town,
                "place": place.tolist(),
                "rooms": [int(room) for room in rooms],
                "price": float(price + (60000 if town == "south" else 0)),
            }
        )
    label = float_feature("price", [row["price"] for row in rows])
    schema = Schema(
        features=(
            float_feature("size", [row["size"] for row in rows]),
            string_feature("town", [row["town"] for row in rows]),
            float_feature("place", [v for row in rows for v in row["place"]], shape=(2,)),
            Feature(name="rooms", kind="int64", shape=(-1,)),
        ),
        label=label,
        task="regression",
    )
    cut = count * 2 // 3
    return commit_rows(uri, schema, {"train": rows[:cut], "eval": rows[cut:]})
