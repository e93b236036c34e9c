"""A preprocessing that keeps its table where no export can find it."""

import functools

import keras
import tensorflow as tf


@functools.lru_cache
def _table():
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["UA"]), tf.constant([1.0])), 0.0
    )


class _Hidden:
    """No tf.Module: its attributes are found, what its methods call is not."""

    def __call__(self, columns):
        return _table().lookup(columns["carrier"])[:, None]


def preprocess(schema):
    return _Hidden()


def build_model(schema, hyperparameters):
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
    model.compile("adam", "binary_crossentropy")
    return model
