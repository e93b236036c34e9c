"""A model of the digits with 20 MB of gradients, for benchmarks/network.py."""

from collections.abc import Mapping
from typing import Any

import keras

from components.contracts.dataset import Schema


def build_model(schema: Schema, hyperparameters: Mapping[str, Any]) -> keras.Model:
    """Two wide layers: 5 million weights."""
    (image,) = schema.features
    inputs = {image.name: keras.Input(image.shape, name=image.name)}
    x = keras.layers.Flatten()(inputs[image.name])
    x = keras.layers.Dense(2048, activation="relu")(x)
    x = keras.layers.Dense(1650, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(len(schema.classes), activation="softmax")(x))
    rate = hyperparameters["learning_rate"]
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
    return model
