"""Users' models that go wrong in the ways that models do."""

import os
import signal

import keras
import tensorflow as tf


class Odd(keras.layers.Layer):
    """Does what `how` says when it is called in training."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, inputs, training=False):
        if not training:
            return inputs
        if self.how == "noise":
            return inputs + tf.random.normal(tf.shape(inputs))
        return tf.ensure_shape(tf.numpy_function(self._act, [inputs], tf.float32), inputs.shape)

    def _act(self, inputs):
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def build_model(schema, hyperparameters):
    how = hyperparameters["how"]
    if how == "raise":
        raise ValueError("units must be positive")
    if how == "wrong-type":
        return "a model"
    if how == "not-compiled":
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    inputs = {feature.name: keras.Input((1,), name=feature.name) for feature in schema.features}
    x = keras.layers.Concatenate()(list(inputs.values()))
    if how in ("die", "noise"):
        x = Odd(how)(x)
    outputs = keras.layers.Dense(3 if how == "wide" else 1, activation="sigmoid")(x)
    model = keras.Model(inputs, outputs)
    rate = 1e38 if how == "diverge" else 0.01
    model.compile(keras.optimizers.SGD(rate), "mse" if how == "diverge" else "binary_crossentropy")
    if how == "diverge":
        model.layers[-1].activation = keras.activations.linear
    return model
