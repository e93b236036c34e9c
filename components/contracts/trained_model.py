"""A model as a checkpoint holds it, put together again outside of training.

Agreed between evaluate_model, which scores it, and export_model, which serves it: both build the
same model in the same way, so that what was scored is what is served.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from components.contracts.checkpoint import (
    CheckpointInfo,
    folder_of,
    load_checkpoint,
    load_model_variables,
)
from components.contracts.dataset import Dataset
from components.contracts.errors import InputError
from components.contracts.training_run import TrainingRun, read_run
from components.contracts.user_model import Preprocess, load_user_model
from components.storage.base import Store
from components.storage.errors import CorruptObjectError, ObjectNotFoundError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A user's model with the weights of one committed step.

    Attributes:
        run: the training run it comes from.
        info: of the checkpoint.
        model: the compiled keras.Model.
        preprocess: from raw columns to the model's input.
    """

    run: TrainingRun
    info: CheckpointInfo
    model: Any
    preprocess: Preprocess

    def outputs(self, columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Outputs by name for a batch of raw columns, images decoded, the label left out."""
        return self.named(self.preprocess(columns))

    def named(self, inputs: Any) -> dict[str, tf.Tensor]:
        """Outputs by name for a batch of preprocessed inputs."""
        return named_outputs(self.model, self.model(inputs, training=False))


def load_trained_model(store: Store, dataset: Dataset, step: int) -> TrainedModel:
    """Build the run's model for `dataset`'s columns and load a committed step into it.

    Args:
        store: opened at the training run's uri.
        dataset: the one it was trained on.
        step: of the checkpoint.

    Raises:
        InputError: no such run or step, a damaged checkpoint, another dataset, or a model module
            that changed since.
        PermanentError: user code failed.
    """
    run = read_run(store)
    if run.dataset_fingerprint != dataset.fingerprint:
        raise InputError(
            f"the model at {store.uri} was trained on a dataset with fingerprint "
            f"{run.dataset_fingerprint}, but {dataset.uri} has {dataset.fingerprint}: its "
            "statistics and vocabularies may differ. Give the dataset of the training run, "
            f"{run.dataset_uri}"
        )
    source = store.uri_of(folder_of(step))
    try:
        info, arrays = load_checkpoint(store, step)
    except (CorruptObjectError, ObjectNotFoundError) as error:
        raise InputError(f"checkpoint of step {step} cannot be used: {error}") from error
    user = load_user_model(run.model_module)
    preprocess = user.preprocessing(dataset.schema)  # in float32, as training makes it
    with compute_policy(str(run.options.get("mixed_precision", "none"))):
        model = user.build(dataset.schema, run.hyperparameters)
    load_model_variables(model, arrays, source=source)
    full_precision_outputs(model)
    return TrainedModel(run=run, info=info, model=model, preprocess=preprocess)


@contextlib.contextmanager
def compute_policy(mixed_precision: str) -> Iterator[None]:
    """Build layers under the training's policy: `none`, `bfloat16` or `float16`."""
    import keras

    before = keras.mixed_precision.dtype_policy()
    if mixed_precision != "none":
        keras.mixed_precision.set_dtype_policy(f"mixed_{mixed_precision}")
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def full_precision_outputs(model: Any) -> None:
    """Compute the layers that make the model's outputs in float32, whatever its policy.

    A sigmoid or softmax in half precision is exact to 3 digits only (keras-team/keras#17362). The
    weights are float32 under a mixed policy, so nothing is lost. Subclassed models, whose last
    layer cannot be told, are left as they are.
    """
    for tensor in getattr(model, "outputs", None) or []:
        history = getattr(tensor, "_keras_history", None)
        layer = history.operation if history is not None else None
        dtype = getattr(layer, "compute_dtype", "float32")
        if layer is not None and dtype in ("float16", "bfloat16"):
            layer.dtype_policy = "float32"


def named_outputs(model: Any, outputs: Any) -> dict[str, tf.Tensor]:
    """Outputs in the model's order by name, floating ones as float32; the first is the scored one.

    A single output is called `output`; those of a list have the names that Keras gives them.
    """
    if not isinstance(outputs, dict):
        listed = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        names = list(getattr(model, "output_names", None) or [])
        if len(listed) == 1:
            names = ["output"]
        elif len(set(names)) != len(listed):
            names = [f"output_{index}" for index in range(len(listed))]
        outputs = dict(zip(names, listed, strict=True))
    return {
        name: tf.cast(value, tf.float32) if value.dtype.is_floating else value
        for name, value in outputs.items()
    }
