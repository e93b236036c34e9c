import logging
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from components.contracts.trained_model import TrainedModel
from components.contracts.training_run import TrainingRun
from components.export_model.keras_copy import KERAS_NAME, write_keras_copy
from components.export_model.serving_config import config_files
from components.export_model.warm_up import WARM_UP_NAME, prediction_log, write_warm_up
from tests.trained_runs import delays as make_delays

FIELD = descriptor_pb2.FieldDescriptorProto


def serving_messages():
    """PredictionLog as far as a request goes, written down from TensorFlow Serving's protos."""
    file = descriptor_pb2.FileDescriptorProto(
        name="serving_subset.proto", package="serving", syntax="proto3"
    )
    file.dependency.append("tensorflow/core/framework/tensor.proto")
    for name, fields in {
        "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
        "InputsEntry": [("key", 1, "string"), ("value", 2, ".tensorflow.TensorProto")],
        "PredictRequest": [("model_spec", 1, ".serving.ModelSpec")],
        "PredictLog": [("request", 1, ".serving.PredictRequest")],
        "PredictionLog": [("predict_log", 6, ".serving.PredictLog")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=FIELD.LABEL_OPTIONAL)
            added.type = FIELD.TYPE_STRING if kind == "string" else FIELD.TYPE_MESSAGE
            if kind != "string":
                added.type_name = kind
    request = file.message_type[2]
    request.field.add(
        name="inputs",
        number=2,
        label=FIELD.LABEL_REPEATED,
        type=FIELD.TYPE_MESSAGE,
        type_name=".serving.InputsEntry",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("serving.PredictionLog"))


def test_the_warm_up_file_holds_requests_for_both_signatures(tmp_path):
    rows, schema = make_delays(20)
    plain = [
        {
            "carrier": row["carrier"] and row["carrier"].encode(),
            "hour": row["hour"],
            "wind": row["wind"],
        }
        for row in rows
    ]
    write_warm_up(tmp_path, schema, SimpleNamespace(rows=plain), "relay")
    message = serving_messages()
    found = []
    for record in tf.data.TFRecordDataset(str(tmp_path / WARM_UP_NAME)):
        request = message.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "relay"
        inputs = {entry.key: tf.make_ndarray(entry.value) for entry in request.inputs}
        sizes = {len(value) for value in inputs.values()}
        found.append((request.model_spec.signature_name, sorted(inputs), sizes))
        if "hour" in inputs:
            assert inputs["hour"].dtype == np.int64
            assert inputs["wind"].dtype == np.float32
            assert inputs["carrier"][0] == (plain[0]["carrier"] or b"")
    columns = ["carrier", "hour", "wind"]
    assert found == [
        ("serving_default", columns, {1}),
        ("serving_examples", ["examples"], {1}),
        ("serving_default", columns, {8}),
        ("serving_examples", ["examples"], {8}),
    ]


def test_long_fields_are_encoded_too():
    words = tf.constant(["x" * 300] * 100)
    log = serving_messages().FromString(prediction_log("m", "s", {"words": words}))
    (entry,) = log.predict_log.request.inputs
    assert (tf.make_ndarray(entry.value) == words.numpy()).all()


def test_the_configuration_names_one_version_and_an_absolute_path():
    files = config_files("gs://bucket/models", 7)
    for text, base in zip(files.values(), ("gs://bucket/models", "/mnt/models"), strict=True):
        assert f'base_path: "{base}"' in text
        assert "specific { versions: 7 }" in text
        assert text.count("{") == text.count("}")


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.layers.Layer):
    def call(self, x):
        return x * 2


class Unregistered(keras.layers.Layer):
    def call(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: keras.layers.Dense(2), ""),
        (Registered, ""),
        (Unregistered, "Could not locate class 'Unregistered'"),
        (lambda: keras.layers.Lambda(lambda x: x + 1), "Lambda"),
    ],
    ids=["stock", "registered", "not registered", "lambda"],
)
def test_a_keras_copy_is_kept_only_if_it_can_be_loaded_again(tmp_path, caplog, layer, reason):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(layer()(inputs)))
    run = TrainingRun(
        model_module=__name__,
        hyperparameters={},
        dataset_uri="",
        dataset_fingerprint="",
        fingerprint="",
    )
    trained = TrainedModel(run=run, info=None, model=model, preprocess=lambda columns: columns)
    with caplog.at_level(logging.WARNING):
        problem = write_keras_copy(tmp_path, trained, tmp_path)
    assert reason in problem
    assert bool(problem) == bool(reason)
    assert (tmp_path / KERAS_NAME).exists() == (not reason)
    assert bool(caplog.records) == bool(reason)


def test_no_code_of_ours_loads_models_unsafely():
    found = subprocess.run(
        ["git", "grep", "-nE", r"safe_mode *= *False|allow_pickle *= *True|import pickle|joblib"]
        + ["--", "*.py", ":!tests"],
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""


def test_importing_the_fresh_process_script_needs_tensorflow_only():
    script = (
        "import sys, importlib.util as u; "
        "from components.export_model import fresh_process; "
        "print([m for m in sys.modules if m.startswith('components.') "
        "and m not in ('components.export_model', 'components.export_model.fresh_process')])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"
