"""A model that takes whatever columns there are, by position."""

import keras

from components.contracts.preprocessing import DefaultPreprocessing


def preprocess(schema):
    return Joined(schema)


class Joined(DefaultPreprocessing):
    def __call__(self, columns):
        parts = super().__call__(columns).values()
        return keras.ops.concatenate(
            [keras.ops.reshape(keras.ops.cast(part, "float32"), (-1, 1)) for part in parts], axis=1
        )


def build_model(schema, hyperparameters):
    inputs = keras.Input((len(schema.features),))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
    model.compile("adam", "binary_crossentropy")
    return model
