"""A user's model with an embedding, BatchNorm and dropout, on the default preprocessing."""

import keras

from components.contracts.preprocessing import vocabulary_size


def build_model(schema, hyperparameters):
    inputs, parts = {}, []
    for feature in schema.features:
        if feature.kind == "string":
            inputs[feature.name] = keras.Input((), name=feature.name, dtype="int64")
            embed = keras.layers.Embedding(vocabulary_size(feature), 4)
            parts.append(embed(inputs[feature.name]))
        else:
            inputs[feature.name] = keras.Input((1,), name=feature.name)
            parts.append(inputs[feature.name])
    x = keras.layers.Concatenate()(parts)
    x = keras.layers.Dense(16, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.2, seed=3)(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(
        "adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]
    )
    return model
