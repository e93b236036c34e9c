"""Preprocessing made from the schema where the user's module brings none.

Agreed between train_model, evaluate_model and export_model.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from components.contracts.dataset import Feature, Schema
from components.contracts.errors import InputError

MISSING_ID = 0
UNSEEN_ID = 1
FIRST_ID = 2


def vocabulary_size(feature: Feature) -> int:
    """Number of ids that a string column gets: missing, unseen, and its vocabulary."""
    return FIRST_ID + len(feature.vocabulary)


class DefaultPreprocessing(tf.Module):
    """Raw columns to model inputs, {column: tensor}.

    int64 and float columns: float32 of mean 0 and variance 1 over the training split, missing
    values 0 (the mean); scalars get shape [batch, 1], lists keep theirs. String columns: int64 ids
    [batch]: 0 missing, 1 unseen in training, then the vocabulary in its order. Images: float32 in
    [0, 1].
    """

    def __init__(self, schema: Schema) -> None:
        """Make the tables. Raises InputError for a column that has no default treatment."""
        super().__init__(name="preprocessing")
        self._features = schema.features
        self._tables = {}
        for feature in schema.features:
            if feature.shape == (-1,) or feature.kind == "bytes":
                raise InputError(
                    f"column {feature.name!r} ({feature.kind}, shape {feature.shape}) has no "
                    "default preprocessing: "
                    "define preprocess(schema) in the model module, or drop the column in the "
                    "conversion"
                )
            if feature.kind == "string":
                self._tables[feature.name] = _vocabulary_table(feature)

    def __call__(self, columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Map a batch of raw columns to the model's inputs."""
        return {
            feature.name: self._column(feature, columns[feature.name]) for feature in self._features
        }

    def _column(self, feature: Feature, values: tf.Tensor) -> tf.Tensor:
        if feature.kind == "image":
            return tf.cast(values, tf.float32) / float(values.dtype.max)
        if feature.kind == "string":
            ids = self._tables[feature.name].lookup(values)
            missing = tf.equal(
                values, feature.missing_value if feature.missing_value is not None else ""
            )
            return tf.where(missing, tf.constant(MISSING_ID, tf.int64), ids)
        deviation = math.sqrt(feature.statistics.variance) or 1.0
        present = (
            tf.math.is_finite(values) if feature.kind == "float" else _present(feature, values)
        )
        scaled = (tf.cast(values, tf.float32) - feature.statistics.mean) / deviation
        scaled = tf.where(present, scaled, tf.zeros_like(scaled))
        return scaled if feature.shape else tf.expand_dims(scaled, 1)


def build_eagerly(preprocess: Callable[[dict[str, Any]], Any], schema: Schema) -> None:
    """Call a user's preprocessing once outside of any graph.

    Keras layers make their state at the first call. Made while tf.data traces a function, it would
    belong to that function's graph, and the next one (validation, the exported signature) would
    fail on it: "'SymbolicTensor' object has no attribute '_datatype_enum'".
    """
    preprocess(typical_columns(schema))


def typical_columns(schema: Schema) -> dict[str, tf.Tensor]:
    """A batch of one row with the columns' means and most frequent strings; images are black."""
    return {feature.name: _typical(feature) for feature in schema.features}


def _typical(feature: Feature) -> tf.Tensor:
    if feature.kind == "image":
        dtype = tf.uint16 if "uint16" in feature.source_type else tf.uint8
        return tf.zeros((1, *feature.shape), dtype)
    if feature.kind in ("string", "bytes"):
        value = tf.constant(feature.vocabulary[0] if feature.vocabulary else "")
    else:
        dtype = tf.float32 if feature.kind == "float" else tf.int64
        value = tf.cast(feature.statistics.mean, dtype)
    if feature.shape == (-1,):
        return tf.RaggedTensor.from_tensor(tf.reshape(value, (1, 1)))
    return tf.fill((1, *feature.shape), value)


def _present(feature: Feature, values: tf.Tensor) -> tf.Tensor:
    if feature.missing_value is None:
        return tf.ones_like(values, tf.bool)
    return tf.not_equal(values, tf.constant(feature.missing_value, values.dtype))


def _vocabulary_table(feature: Feature) -> tf.lookup.StaticHashTable:
    words = tf.constant(list(feature.vocabulary), tf.string)
    ids = tf.range(FIRST_ID, FIRST_ID + len(feature.vocabulary), dtype=tf.int64)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(words, ids), default_value=UNSEEN_ID
    )
