"""The warm-up file of TensorFlow Serving: requests that it answers before it takes traffic.

`assets.extra/tf_serving_warmup_requests` is a TFRecord file of tensorflow.serving.PredictionLog.
The package that defines the message is not needed for the few fields that a request has; they are
encoded here by number (tensorflow_serving/apis/{prediction_log,predict,model}.proto):

    PredictionLog.predict_log = 6, PredictLog.request = 1
    PredictRequest.model_spec = 1, .inputs = 2 (map: key = 1, value = 2, a TensorProto)
    ModelSpec.name = 1, .signature_name = 3
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from components.contracts.dataset import Schema
from components.contracts.published_model import (
    EXAMPLES_INPUT,
    EXAMPLES_SIGNATURE,
    RAW_SIGNATURE,
)
from components.export_model.rows import ParityRows, as_example, raw_request, tensors_of

WARM_UP_NAME = "assets.extra/tf_serving_warmup_requests"
# Batch sizes of the requests: one alone, and several, which take other kernels.
BATCHES = (1, 8)

_LENGTH_DELIMITED = 2


def write_warm_up(folder: Path, schema: Schema, rows: ParityRows, model_name: str) -> None:
    """Write requests made of real rows, for both signatures, into a SavedModel's folder."""
    path = folder / WARM_UP_NAME
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in BATCHES:
            some = rows.rows[:size]
            raw = tensors_of(raw_request(schema, some))
            examples = {EXAMPLES_INPUT: tf.constant([as_example(schema, row) for row in some])}
            for signature, inputs in ((RAW_SIGNATURE, raw), (EXAMPLES_SIGNATURE, examples)):
                writer.write(prediction_log(model_name, signature, inputs))


def prediction_log(model_name: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """A serialized PredictionLog that asks `signature` for `inputs`, {name: tensor}."""
    model_spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    request = _field(1, model_spec)
    for name, tensor in inputs.items():
        value = tf.make_tensor_proto(tensor.numpy()).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, value))
    return _field(6, _field(1, request))


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field of the protobuf wire format."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
