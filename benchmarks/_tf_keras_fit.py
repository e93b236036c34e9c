"""One worker of tf_keras' `fit`, to compare with: run by the benchmarks in tf_keras' environment.

Arguments are one JSON object: worker, ports, folder, epochs, batch_size, rows, backup. Appends a
line "epoch batch time" for each batch to <folder>/batches-<worker>, and worker 0 leaves its weights
in <folder>/weights.npz when it is done.
"""

import json
import os
import sys
import time
from pathlib import Path

arguments = json.loads(sys.argv[1])
worker, folder = arguments["worker"], Path(arguments["folder"])
addresses = [f"127.0.0.1:{port}" for port in arguments["ports"]]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
)
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402 - the environment comes first
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402

tf_keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
generator = np.random.default_rng(0)
x = generator.normal(size=(arguments["rows"], 2)).astype(np.float32)
y = (x[:, :1] - x[:, 1:] > 0).astype(np.float32)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1)
data = data.batch(arguments["batch_size"], drop_remainder=True)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
with strategy.scope():
    model = tf_keras.Sequential(
        [
            tf_keras.layers.Dense(8, activation="relu", input_shape=(2,)),
            tf_keras.layers.BatchNormalization(),
            tf_keras.layers.Dropout(0.3),
            tf_keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(tf_keras.optimizers.AdamW(0.01), "binary_crossentropy")


class Batches(tf_keras.callbacks.Callback):
    """Notes every batch."""

    def on_train_begin(self, logs: object = None) -> None:
        """Open the file."""
        self.file = (folder / f"batches-{worker}").open("a", buffering=1)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Remember the epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Write a line."""
        self.file.write(f"{self.epoch} {batch} {time.monotonic()}\n")


callbacks = [Batches()]
if arguments["backup"]:
    callbacks.append(tf_keras.callbacks.BackupAndRestore(str(folder / f"backup-{worker}")))
model.fit(data.with_options(options), epochs=arguments["epochs"], callbacks=callbacks, verbose=0)
if worker == 0:
    np.savez(folder / "weights.npz", *model.get_weights())
os._exit(0)
