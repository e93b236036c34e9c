"""From serialized Examples to a batch of columns.

Agreed between train_model, evaluate_model and export_model.
"""

from typing import Any

import tensorflow as tf

from components.contracts.dataset import PACKED_FEATURES, Feature, Layout, Schema

DTYPES = {
    "int64": tf.int64,
    "float": tf.float32,
    "string": tf.string,
    "bytes": tf.string,
    "image": tf.string,
}


def feature_spec(schema: Schema, *, with_label: bool = True) -> dict[str, Any]:
    """Parsing specification of the layout `columns`: {column: FixedLenFeature or RaggedFeature}."""
    columns = [*schema.features, schema.label] if with_label else list(schema.features)
    return {column.name: _spec_of(column) for column in columns}


def parse_batch(
    serialized: tf.Tensor, schema: Schema, layout: Layout = "columns"
) -> dict[str, tf.Tensor]:
    """Parse serialized Examples, shape [batch], into {column: tensor}, the label included.

    Scalars have shape [batch], fixed lists [batch, n], variable ones are RaggedTensors [batch,
    None], images are decoded to uint8 (or uint16 for 16-bit PNG declared so) [batch, height, width,
    channels]. A missing value is the column's `missing_value`.
    """
    return decode_images(parse_encoded(serialized, schema, layout), schema)


def parse_encoded(
    serialized: tf.Tensor,
    schema: Schema,
    layout: Layout = "columns",
    *,
    with_label: bool = True,
) -> dict[str, tf.Tensor]:
    """Parse like `parse_batch`, but leave images as encoded files, strings of shape [batch]."""
    columns = [*schema.features, *([schema.label] if with_label else [])]
    if layout == "packed":
        return _parse_packed(serialized, columns)
    return dict(tf.io.parse_example(serialized, feature_spec(schema, with_label=with_label)))


def decode_images(columns: dict[str, tf.Tensor], schema: Schema) -> dict[str, tf.Tensor]:
    """Replace the encoded files of image columns, shape [batch], by pixels."""
    images = {feature.name: feature for feature in schema.features if feature.kind == "image"}
    return {
        name: _decoded(images[name], values) if name in images else values
        for name, values in columns.items()
    }


def labels_for_loss(labels: tf.Tensor, schema: Schema) -> tf.Tensor:
    """Labels as the user's loss takes them: [batch] class indices, or float32 [batch, 1]."""
    if schema.task == "multiclass":
        return labels
    return tf.expand_dims(tf.cast(labels, tf.float32), 1)


def _spec_of(column: Feature) -> Any:
    dtype = DTYPES[column.kind]
    if column.kind == "image":
        return tf.io.FixedLenFeature((), tf.string)
    if column.shape == (-1,):
        return tf.io.RaggedFeature(dtype)
    if column.missing_value is None:
        return tf.io.FixedLenFeature(column.shape, dtype)
    default = tf.fill(column.shape, tf.constant(column.missing_value, dtype))
    return tf.io.FixedLenFeature(column.shape, dtype, default)


def _parse_packed(serialized: tf.Tensor, columns: list[Feature]) -> dict[str, tf.Tensor]:
    packed = [column for column in columns if column.kind != "image" and column.shape != (-1,)]
    others = [column for column in columns if column not in packed]
    widths: dict[str, int] = {}
    for column in packed:
        key = PACKED_FEATURES[column.kind]
        widths[key] = widths.get(key, 0) + (column.shape[0] if column.shape else 1)
    kinds = {PACKED_FEATURES[column.kind]: DTYPES[column.kind] for column in packed}
    spec: dict[str, Any] = {
        key: tf.io.FixedLenFeature((width,), kinds[key]) for key, width in widths.items()
    }
    parsed = tf.io.parse_example(
        serialized, spec | {column.name: _spec_of(column) for column in others}
    )
    position = dict.fromkeys(widths, 0)
    for column in packed:
        key, width = PACKED_FEATURES[column.kind], (column.shape[0] if column.shape else 1)
        values = parsed[key][:, position[key] : position[key] + width]
        parsed[column.name] = values if column.shape else tf.squeeze(values, 1)
        position[key] += width
    return {column.name: parsed[column.name] for column in columns}


def _decoded(column: Feature, values: tf.Tensor) -> tf.Tensor:
    height, width, channels = column.shape
    dtype = tf.uint16 if "uint16" in column.source_type else tf.uint8

    def decode(data: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(data, channels=channels, dtype=dtype, expand_animations=False)
        return tf.ensure_shape(image, (height, width, channels))

    return tf.map_fn(
        decode, values, fn_output_signature=tf.TensorSpec((height, width, channels), dtype)
    )
