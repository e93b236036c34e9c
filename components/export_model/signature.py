"""The exported module: preprocessing and model behind two fixed signatures."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.contracts.dataset import Feature, Schema
from components.contracts.errors import InputError
from components.contracts.examples import DTYPES, decode_images, parse_encoded
from components.contracts.published_model import (
    CLASS_OUTPUT,
    EXAMPLES_INPUT,
    EXAMPLES_SIGNATURE,
    RAW_SIGNATURE,
    SCORED_OUTPUTS,
    padding_of,
)
from components.contracts.trained_model import TrainedModel
from components.export_model.column_names import name_inputs, traced_names


class Served(tf.Module):
    """What is saved: the trained model, its preprocessing, and the signatures over both."""

    def __init__(self, trained: TrainedModel, schema: Schema) -> None:
        super().__init__(name="served")
        self._trained = trained
        self._schema = schema
        self.traced_names = traced_names([feature.name for feature in schema.features])
        # Whatever holds variables or tables must be reachable from here, or it is not saved.
        self.model = trained.model
        self.held = list(_trackables(trained.preprocess))
        self.class_names = (
            tf.constant(list(schema.classes)) if schema.task == "multiclass" else None
        )

    def signatures(self) -> dict[str, Any]:
        """Concrete functions by signature name."""
        specs = raw_inputs(self._schema)
        raw = tf.function(self._serve_raw).get_concrete_function(
            **{traced: specs[column] for traced, column in self.traced_names.items()}
        )
        examples = tf.function(self._serve_examples).get_concrete_function(
            **{EXAMPLES_INPUT: tf.TensorSpec((None,), tf.string, name=EXAMPLES_INPUT)}
        )
        return {RAW_SIGNATURE: raw, EXAMPLES_SIGNATURE: examples}

    def _serve_raw(self, **traced: Any) -> dict[str, Any]:
        columns = {column: traced[name] for name, column in self.traced_names.items()}
        encoded = {
            feature.name: _without_padding(feature, columns[feature.name])
            if feature.shape == (-1,)
            else columns[feature.name]
            for feature in self._schema.features
        }
        return self._outputs(encoded)

    def _serve_examples(self, **inputs: Any) -> dict[str, Any]:
        serialized = inputs[EXAMPLES_INPUT]
        return self._outputs(parse_encoded(serialized, self._schema, with_label=False))

    def _outputs(self, encoded: dict[str, Any]) -> dict[str, Any]:
        named = self._trained.outputs(decode_images(encoded, self._schema))
        scored, *others = named
        return served_outputs(named[scored], self._schema, self.class_names) | {
            name: named[name] for name in others
        }


def served_outputs(scored: Any, schema: Schema, class_names: Any) -> dict[str, Any]:
    """The scored output as clients get it, by the names that the task fixes."""
    name = SCORED_OUTPUTS[schema.task]
    if schema.task == "multiclass":
        return {name: scored, CLASS_OUTPUT: tf.gather(class_names, tf.argmax(scored, axis=1))}
    return {name: tf.squeeze(scored, 1) if scored.shape.rank == 2 else scored}


def raw_inputs(schema: Schema) -> dict[str, tf.TensorSpec]:
    """Inputs of the raw signature: [batch], or [batch, n] for lists, by column name.

    A list of variable length comes padded to [batch, longest] with `padding_of` its column.
    """
    return {
        feature.name: tf.TensorSpec(_raw_shape(feature), DTYPES[feature.kind])
        for feature in schema.features
    }


def save(served: Served, folder: Path) -> None:
    """Write the SavedModel.

    Raises:
        InputError: the preprocessing holds a table or variable that cannot be found to be saved.
    """
    try:
        tf.saved_model.save(served, str(folder), signatures=served.signatures())
        name_inputs(folder, RAW_SIGNATURE, served.traced_names)
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise InputError(
            "preprocess holds a table or variable that the exported model cannot reach, so that "
            "it would not be saved with it. Let preprocess return a keras.Layer or tf.Module that "
            f"keeps it as an attribute ({str(error).splitlines()[0]})"
        ) from error


def _raw_shape(feature: Feature) -> tuple[int | None, ...]:
    if feature.kind == "image" or not feature.shape:
        return (None,)
    return (None, None if feature.shape == (-1,) else feature.shape[0])


def _without_padding(feature: Feature, values: Any) -> Any:
    """Cut the padding off the ends of rows, [batch, longest] to ragged [batch, None]."""
    padding = padding_of(feature)
    if isinstance(padding, float):
        present = tf.logical_not(tf.math.is_nan(values))
    else:
        present = tf.not_equal(values, tf.constant(padding, values.dtype))
    positions = tf.range(1, tf.shape(values)[1] + 1)
    lengths = tf.reduce_max(tf.where(present, positions, 0), axis=1)
    # The maximum over no positions at all is the smallest integer.
    return tf.RaggedTensor.from_tensor(values, lengths=tf.maximum(lengths, 0))


def _trackables(preprocess: Any) -> Iterator[Any]:
    """The preprocessing itself, or what a plain function has in its closure."""
    if isinstance(preprocess, tf.Module | tf.__internal__.tracking.Trackable):
        yield preprocess
        return
    function = inspect.unwrap(preprocess)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield from _trackables_in(vars(owner) if hasattr(owner, "__dict__") else {})
    function = getattr(function, "__func__", function)
    if inspect.isfunction(function):
        found = inspect.getclosurevars(function)
        yield from _trackables_in({**found.globals, **found.nonlocals})


def _trackables_in(values: Mapping[str, Any]) -> Iterator[Any]:
    for value in values.values():
        if isinstance(value, tf.__internal__.tracking.Trackable):
            yield value
        elif isinstance(value, dict):
            yield from _trackables_in(value)
        elif isinstance(value, list | tuple):
            yield from _trackables_in(dict(enumerate(value)))  # type: ignore[arg-type]
