"""The user's model: embeddings for what has a name, a small network over everything."""

from collections.abc import Mapping
from typing import Any

import keras

from components.contracts.dataset import Schema
from components.contracts.preprocessing import vocabulary_size


def build_model(schema: Schema, hyperparameters: Mapping[str, Any]) -> keras.Model:
    """Build and compile the model for the columns of the dataset."""
    inputs, parts = {}, []
    for feature in schema.features:
        if feature.kind == "string":
            inputs[feature.name] = keras.Input((), name=feature.name, dtype="int64")
            width = min(16, 1 + vocabulary_size(feature) // 4)
            embedding = keras.layers.Embedding(vocabulary_size(feature), width)
            parts.append(embedding(inputs[feature.name]))
        else:
            inputs[feature.name] = keras.Input((1,), name=feature.name)
            parts.append(inputs[feature.name])
    x = keras.layers.Concatenate()(parts)
    for units in hyperparameters.get("units", [64, 32]):
        x = keras.layers.Dense(units, activation="relu")(x)
        x = keras.layers.Dropout(hyperparameters.get("dropout", 0.1))(x)
    outputs = keras.layers.Dense(1, activation="sigmoid")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.AdamW(hyperparameters.get("learning_rate", 1e-3)),
        loss="binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc"), "accuracy"],
    )
    return model
