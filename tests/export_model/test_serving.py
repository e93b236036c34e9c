"""The hand-off to servers: manifests, and the request that the README shows."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import yaml
from pyarrow import csv
from tensorflow.core.protobuf import saved_model_pb2

from components.export_model.serving_config import DIRECT, KSERVE, KSERVE_MOUNT, MODEL_NAME
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from examples.flights.data import flights_with_weather
from tests.export_model.runs import evaluated, exported
from tests.trained_runs import commit_run

SERVING = Path(__file__).parents[2] / "manifests" / "serving"


def manifest(name):
    return yaml.safe_load((SERVING / name).read_text())


def test_the_deployment_follows_the_champion_and_not_the_highest_number():
    pod = manifest("deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = dict(argument.lstrip("-").split("=", 1) for argument in container["args"])
    assert arguments["model_config_file"] == f"gs://BUCKET/models/{DIRECT}"
    assert int(arguments["model_config_file_poll_wait_seconds"]) > 0
    assert "model_base_path" not in arguments
    assert container["readinessProbe"]["httpGet"]["path"] == f"/v1/models/{MODEL_NAME}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {"grpc": arguments["port"], "rest": arguments["rest_api_port"]}
    targets = {port["targetPort"] for port in manifest("service.yaml")["spec"]["ports"]}
    assert targets == set(ports)


def test_the_inference_service_serves_the_same_champion():
    service = manifest("inference-service.yaml")
    model = service["spec"]["predictor"]["model"]
    assert model["modelFormat"]["name"] == "tensorflow"
    assert model["args"] == [f"--model_config_file={KSERVE_MOUNT}/{KSERVE}"]
    # KServe puts the service's name into the path, TensorFlow Serving the model's.
    assert service["metadata"]["name"] == MODEL_NAME


def test_the_kustomization_names_files_that_are_there():
    for name in manifest("kustomization.yaml")["resources"]:
        assert manifest(name)["metadata"]["name"] == "relay-serving"


@pytest.mark.slow
def test_the_request_in_the_readme_fits_the_signature_of_the_flights_model(tmp_path):
    table = flights_with_weather()
    some = table.take(list(range(0, table.num_rows, 100)))  # of the whole year
    csv.write_csv(some, tmp_path / "flights.csv")
    dataset = make_tfrecords(
        ConvertOptions(
            source=str(tmp_path / "flights.csv"), label="late", group="date", drop=("date",)
        ),
        str(tmp_path / "data"),
    )
    commit_run(tmp_path / "run", dataset, "examples.flights.model", epochs=1)
    run = SimpleNamespace(data_uri=str(tmp_path / "data"), run_uri=str(tmp_path / "run"))
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    blocks = re.findall(r"```json\n(.*?)```", (SERVING / "README.md").read_text(), re.DOTALL)
    request, response = (json.loads(block) for block in blocks)
    answer = predicted(result["model_uri"], request)
    assert answer.keys() == response.keys()
    assert len(answer["predictions"]) == len(request["instances"])
    assert all(0 <= value <= 1 for value in answer["predictions"])


def predicted(folder, request):
    """What TensorFlow Serving's REST API does with a predict request in row format.

    Inputs are matched with the SignatureDef by name and JSON values converted to its types
    (tensorflow_serving/g3doc/api_rest.md): all inputs must be there, and no others.
    """
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(Path(folder, "saved_model.pb").read_bytes())
    signature = saved.meta_graphs[0].signature_def[request["signature_name"]]
    columns = {}
    for instance in request["instances"]:
        assert instance.keys() == signature.inputs.keys()
        for name, value in instance.items():
            columns.setdefault(name, []).append(value)
    tensors = {}
    for name, values in columns.items():
        info = signature.inputs[name]
        dtype = tf.as_dtype(info.dtype)
        kinds = {tf.string: str, tf.int64: int, tf.float32: int | float}
        assert all(isinstance(value, kinds[dtype]) for value in values), name
        tensors[name] = tf.constant(values, dtype)
        wanted = [dim.size for dim in info.tensor_shape.dim]
        assert len(wanted) == tensors[name].shape.rank
    loaded = tf.saved_model.load(folder)
    outputs = loaded.signatures[request["signature_name"]](**tensors)
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values())).numpy().tolist()}
    rows = zip(*(np.asarray(value).tolist() for value in outputs.values()), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}
