"""A model with two outputs, the first of which is the label's; it is scored alone."""

import keras

from tests.models import delays


def build_model(schema, hyperparameters):
    inner = delays.build_model(schema, hyperparameters)
    hidden = inner.layers[-2].output
    score = keras.layers.Dense(1, name="score", activation="tanh", trainable=False)(hidden)
    model = keras.Model(inner.inputs, {"late": inner.output, "score": score})
    model.compile("adam", loss={"late": "binary_crossentropy"})
    return model
