"""The small model with a hook: user code that goes wrong when a test says so, once.

A test arms it by a file named `<what>-<worker>` in the folder that hyperparameters["hooks"] names;
the hook removes the file and then does what its name says.
"""

import json
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

from tests.train_model import small_model


class Hook(keras.layers.Layer):
    """Passes its input on unchanged."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def call(self, inputs, training=False):
        if not training:
            return inputs
        passed = tf.numpy_function(self._act, [inputs], tf.float32)
        return tf.ensure_shape(passed, inputs.shape)

    def _act(self, inputs):
        act(self.folder, "step")
        return inputs


def act(folder, moment):
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    for path in Path(folder).glob(f"{moment}-*-{worker}"):
        what = path.name.split("-")[1]
        if what != "exit137":  # that one comes again and again
            path.unlink()
        if what == "stuck":
            time.sleep(10_000)
        elif what == "raise":
            raise ValueError("the price of a flight must be positive")
        elif what == "exit137":
            os._exit(137)
        elif what == "exit0":
            os._exit(0)


def build_model(schema, hyperparameters):
    act(hyperparameters["hooks"], "build")
    inputs = {feature.name: keras.Input((1,), name=feature.name) for feature in schema.features}
    x = Hook(hyperparameters["hooks"])(keras.layers.Concatenate()(list(inputs.values())))
    return small_model.compiled(inputs, small_model.hidden(x), hyperparameters)
