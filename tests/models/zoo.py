"""Models with what exports stumble over; `hyperparameters["kind"]` chooses one."""

import keras
import tensorflow as tf


class Scale(keras.layers.Layer):
    """A custom layer that nobody registered, with an argument of its own."""

    def __init__(self, k, **kwargs):
        super().__init__(**kwargs)
        self.k = k

    def build(self, shape):
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones", name="weight")

    def call(self, x):
        return x * self.weight * self.k


class Preprocessing(tf.Module):
    """StringLookup and Normalization in user code, and a missing flag for numbers."""

    def __init__(self, schema):
        super().__init__()
        self.lookup = keras.layers.StringLookup(vocabulary=list(schema["carrier"].vocabulary))
        statistics = schema["wind"].statistics
        self.normalize = keras.layers.Normalization(
            mean=statistics.mean, variance=statistics.variance, axis=None
        )

    def __call__(self, columns):
        depth = int(self.lookup.vocabulary_size())
        carrier = tf.one_hot(self.lookup(columns["carrier"]), depth)
        wind = columns["wind"][:, None]
        unknown = tf.math.is_nan(wind)
        wind = tf.where(unknown, tf.zeros_like(wind), self.normalize(wind))
        hour = tf.cast(tf.maximum(columns["hour"], 0), tf.float32)[:, None] / 24.0
        return tf.concat([carrier, wind, tf.cast(unknown, tf.float32), hour], axis=1)


def preprocess(schema):
    return Preprocessing(schema)


def build_model(schema, hyperparameters):
    width = len(schema["carrier"].vocabulary) + 1 + 3
    inputs = keras.Input((width,))
    outputs = KINDS[hyperparameters["kind"]](inputs)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "binary_crossentropy")
    return model


def _custom(inputs):
    return keras.layers.Dense(1, activation="sigmoid")(Scale(3)(inputs))


def _nested(inputs):
    inner = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu"),
            keras.Sequential([keras.layers.Dense(4), Scale(2)]),
        ]
    )
    return keras.layers.Dense(1, activation="sigmoid")(inner(inputs))


def _normalized(inputs):
    x = keras.layers.Dense(16)(inputs)
    x = keras.layers.BatchNormalization(momentum=0.7)(x)
    x = keras.layers.Dropout(0.5)(keras.layers.Activation("gelu")(x))
    return keras.layers.Dense(1, activation="sigmoid")(x)


def _deep(inputs):
    x = keras.layers.Dense(64, activation="relu")(inputs)
    x = keras.layers.Dense(64, activation="relu")(x)
    return keras.layers.Dense(1, activation="sigmoid")(x)


KINDS = {"custom": _custom, "nested": _nested, "normalized": _normalized, "deep": _deep}
