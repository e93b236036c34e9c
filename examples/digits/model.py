"""The user's model: a small convolutional network."""

from collections.abc import Mapping
from typing import Any

import keras

from components.contracts.dataset import Schema


def build_model(schema: Schema, hyperparameters: Mapping[str, Any]) -> keras.Model:
    """Build and compile the model for the image column of the dataset."""
    (image,) = schema.features
    inputs = {image.name: keras.Input(image.shape, name=image.name)}
    x = inputs[image.name]
    for filters in hyperparameters.get("filters", [16, 32]):
        x = keras.layers.Conv2D(filters, 3, activation="relu", padding="same")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(hyperparameters.get("dropout", 0.3))(x)
    outputs = keras.layers.Dense(len(schema.classes), activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(hyperparameters.get("learning_rate", 2e-3)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
