"""The trainers' rendezvous: TensorFlow set up, and the strategy made with all peers in it."""

import os
from typing import Any

import keras
import tensorflow as tf

from components.contracts.errors import InputError
from components.train_model.options import TrainOptions
from components.train_model.worker.cluster import tf_config


def meet_peers(options: TrainOptions, members: tuple[str, ...], worker: int) -> Any:
    """Configure the runtime, which nothing may have touched yet, and wait for all peers.

    Args:
        options: of the run.
        members: trainer addresses by index, empty for a single worker.
        worker: index of this one.

    Returns:
        The strategy. Waits in C++ with the interpreter's lock held, for as long as a peer is
        missing: only the supervisor can end that.

    Raises:
        InputError: this worker sees more than one GPU.
    """
    keras.utils.set_random_seed(options.seed)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if options.mixed_precision != "none":
        keras.mixed_precision.set_global_policy(f"mixed_{options.mixed_precision}")
    os.environ.pop("TF_CONFIG", None)
    if options.workers > 1:
        os.environ["TF_CONFIG"] = tf_config(members, worker)
        _set_heartbeat_timeout(options.heartbeat_secs)
    if len(tf.config.list_physical_devices("GPU")) > 1:
        raise InputError("a worker sees more than one GPU: give each worker one, and add workers")
    communication = {
        "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
        "ring": tf.distribute.experimental.CommunicationImplementation.RING,
        "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    }[options.communication]
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=options.collective_timeout_secs, implementation=communication
        )
    )


def _set_heartbeat_timeout(seconds: float) -> None:
    from tensorflow.python.eager import context  # no public switch exists (TensorFlow 2.21)

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="",
        heartbeat_timeout_in_ms=int(seconds * 1000),
    )
