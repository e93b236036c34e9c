import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from components.contracts.errors import InputError
from components.contracts.report import MANIFEST_NAME
from components.export_model.parity import SkewError, answers_in_fresh_process
from components.storage.open import open_store
from tests.export_model.runs import evaluated, exported
from tests.trained_runs import MISSING_INT, commit_delays, commit_rows, commit_run, delays_schema

RAW = {
    "carrier": [b"UA", b"", b"never heard of"],
    "hour": [17, MISSING_INT, 9],
    "wind": [12.5, math.nan, 0.0],
}
DTYPES = {"carrier": "string", "hour": "int64", "wind": "float32"}


def raw_inputs(rows=slice(None)):
    return {
        name: {
            "dtype": DTYPES[name],
            "shape": [len(values[rows])],
            "values": [v.hex() if isinstance(v, bytes) else v for v in values[rows]],
        }
        for name, values in RAW.items()
    }


def signatures_of(folder):
    """Inputs and outputs by signature as a server reads them."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(Path(folder, "saved_model.pb").read_bytes())
    return {
        name: tuple(
            {
                key: (tf.as_dtype(info.dtype).name, [dim.size for dim in info.tensor_shape.dim])
                for key, info in side.items()
            }
            for side in (definition.inputs, definition.outputs)
        )
        for name, definition in saved.meta_graphs[0].signature_def.items()
        if name.startswith("serving")
    }


@pytest.fixture(scope="session")
def published(delays, tmp_path_factory):
    """The binary classifier, evaluated and exported."""
    folder = tmp_path_factory.mktemp("published")
    report = evaluated(delays, folder / "report")
    result = exported(delays, folder / "report", folder / "root")
    return SimpleNamespace(
        report=report, result=result, root=folder / "root", report_uri=folder / "report"
    )


def test_raw_rows_are_answered_where_only_tensorflow_can_be_imported(published):
    model = Path(published.result["model_uri"])
    request = {"signature": "serving_default", "inputs": raw_inputs()}
    single = {"signature": "serving_default", "inputs": raw_inputs(slice(1, 2))}
    many, one = answers_in_fresh_process(model, [request, single])
    probability = many["probability"]
    assert list(many) == ["probability"]
    assert probability.dtype == np.float32
    assert probability.shape == (3,)
    assert np.isfinite(probability).all()
    assert one["probability"] == pytest.approx(probability[1:2], abs=1e-6)


def test_the_fresh_process_cannot_import_the_project(published):
    script = "import components"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd="/"
    )
    assert "No module named 'components'" in ended.stderr


def test_signatures_have_fixed_names_types_and_shapes(published):
    assert signatures_of(published.result["model_uri"]) == {
        "serving_default": (
            {"carrier": ("string", [-1]), "hour": ("int64", [-1]), "wind": ("float32", [-1])},
            {"probability": ("float32", [-1])},
        ),
        "serving_examples": (
            {"examples": ("string", [-1])},
            {"probability": ("float32", [-1])},
        ),
    }


def test_both_signatures_and_the_training_path_agree(delays, published):
    assert published.result["parity"]["rows"] > 256
    assert published.result["parity"]["max_difference"] <= 1e-5
    loaded = tf.saved_model.load(published.result["model_uri"])
    example = tf.train.Example()
    example.features.feature["carrier"].bytes_list.value.append(b"UA")
    example.features.feature["hour"].int64_list.value.append(17)
    example.features.feature["wind"].float_list.value.append(12.5)
    empty = tf.train.Example()
    records = tf.constant([example.SerializeToString(), empty.SerializeToString()])
    found = loaded.signatures["serving_examples"](examples=records)["probability"].numpy()
    raw = {
        "carrier": tf.constant([b"UA", b""]),
        "hour": tf.constant([17, MISSING_INT], tf.int64),
        "wind": tf.constant([12.5, math.nan]),
    }
    expected = loaded.signatures["serving_default"](**raw)["probability"].numpy()
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_published_version_is_found_again_and_not_published_twice(delays, published):
    again = exported(delays, published.report_uri, published.root)
    assert again["version"] == published.result["version"]
    assert again["parity"] == published.result["parity"]
    assert again["promoted"] is True
    assert sorted(path.name for path in published.root.iterdir() if path.name.isdigit()) == ["1"]


def test_card_and_lineage_lie_beside_the_model(published):
    extra = Path(published.result["model_uri"], "assets.extra")
    card = (extra / "model_card.md").read_text()
    assert '| carrier | string | [batch] | `""` |' in card
    assert f"| hour | int64 | [batch] | `{MISSING_INT}` |" in card
    assert "| wind | float32 | [batch] | `NaN` |" in card
    lineage = json.loads((extra / "lineage.json").read_text())
    assert lineage["checkpoint_step"] == published.report.checkpoint_step
    manifest = json.loads(Path(published.result["model_uri"], MANIFEST_NAME).read_text())
    assert manifest["classes"] == ["no", "yes"]


def test_an_export_by_hand_writes_its_result(delays, published, tmp_path):
    from components.export_model.__main__ import main

    main(
        [
            f"--dataset-uri={delays.data_uri}",
            f"--run-uri={delays.run_uri}",
            f"--report-uri={published.report_uri}",
            "--checkpoint=120",
            f"--export-root={published.root}",
            f"--result={tmp_path / 'result.json'}",
        ]
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["model_uri"] == str(published.root / "1")
    assert result["champion"]["version"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shapes", "prices"])
def test_images_lists_and_classes_are_served_by_name(request, tmp_path, name):
    run = request.getfixturevalue(name)
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    loaded = tf.saved_model.load(result["model_uri"])
    inputs = loaded.signatures["serving_default"].structured_input_signature[1]
    outputs = loaded.signatures["serving_default"].structured_outputs
    if name == "shapes":
        assert inputs["image"].dtype == tf.string  # the bytes of a file
        assert outputs["probabilities"].shape.as_list() == [None, 3]
        assert outputs["class"].dtype == tf.string
        pixels = np.zeros((8, 8, 1), np.uint8)
        pixels[:, 3] = 200
        answer = loaded.signatures["serving_default"](
            image=tf.constant([tf.io.encode_png(pixels).numpy()]), camera=tf.constant(["left"])
        )
        best = int(answer["probabilities"].numpy()[0].argmax())
        assert answer["class"].numpy()[0].decode() == run.dataset.schema.classes[best]
    else:
        assert inputs["rooms"].shape.as_list() == [None, None]
        assert inputs["place"].shape.as_list() == [None, 2]
        pad = -(2**63)
        answer = loaded.signatures["serving_default"](
            size=tf.constant([100.0, 100.0]),
            town=tf.constant(["north", "north"]),
            place=tf.zeros((2, 2)),
            rooms=tf.constant([[10, 20], [30, pad]], tf.int64),
        )
        assert answer["value"].shape == (2,)
        assert answer["value"].numpy()[0] == pytest.approx(answer["value"].numpy()[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["custom", "nested", "normalized"])
def test_user_code_is_served_as_it_was_trained(tmp_path, kind):
    run = _run(tmp_path, "tests.models.zoo", hyperparameters={"kind": kind})
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    assert result["parity"]["max_difference"] <= 1e-5
    assert result["parity"]["rows"] >= 150


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_is_served_in_float32(tmp_path, precision):
    run = _run(
        tmp_path,
        "tests.models.zoo",
        hyperparameters={"kind": "deep"},
        mixed_precision=precision,
    )
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    loaded = tf.saved_model.load(result["model_uri"])
    raw = {
        "carrier": tf.constant([b"UA", b"B6"]),
        "hour": tf.constant([17, 9], tf.int64),
        "wind": tf.constant([12.5, 3.25]),
    }
    served = loaded.signatures["serving_default"](**raw)["probability"]
    assert served.dtype == tf.float32
    # The sigmoid is computed in float32: its values are no halves of 11 or 8 bits.
    half = tf.cast(served, getattr(tf, precision))
    assert not np.array_equal(tf.cast(half, tf.float32).numpy(), served.numpy())


@pytest.mark.slow
def test_several_outputs_are_all_served(tmp_path):
    run = _run(tmp_path, "tests.models.several", validated=False)
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    loaded = tf.saved_model.load(result["model_uri"])
    outputs = loaded.signatures["serving_default"].structured_outputs
    assert {name: spec.shape.as_list() for name, spec in outputs.items()} == {
        "probability": [None],
        "score": [None, 1],
    }


@pytest.mark.slow
def test_column_names_of_real_tables_survive(tmp_path):
    names = {"carrier": "größte Bö", "hour": "dep. hour (local)", "wind": "class"}
    from tests.trained_runs import delays

    rows, _ = delays(450)
    schema = delays_schema(rows)
    import dataclasses

    renamed = dataclasses.replace(
        schema,
        features=tuple(
            dataclasses.replace(feature, name=names[feature.name]) for feature in schema.features
        ),
    )
    rows = [{names.get(name, name): value for name, value in row.items()} for row in rows]
    splits = {"train": rows[:300], "eval": rows[300:]}
    dataset = commit_rows(tmp_path / "data", renamed, splits)
    commit_run(tmp_path / "run", dataset, "tests.models.plain", epochs=1)
    run = SimpleNamespace(data_uri=str(tmp_path / "data"), run_uri=str(tmp_path / "run"))
    evaluated(run, tmp_path / "report")
    result = exported(run, tmp_path / "report", tmp_path / "root")
    inputs, _ = signatures_of(result["model_uri"])["serving_default"]
    assert set(inputs) == set(names.values())
    report = evaluated(run, tmp_path / "again", champion_root=str(tmp_path / "root"))
    assert report.metrics["auc"].champion == pytest.approx(report.metrics["auc"].value, abs=1e-6)


def test_a_preprocessing_that_changed_after_the_evaluation_is_caught(
    delays, published, tmp_path, monkeypatch
):
    from components.contracts import preprocessing

    real = preprocessing.DefaultPreprocessing.__call__

    def changed(self, columns):
        return real(self, {**columns, "wind": columns["wind"] * 3.6})

    monkeypatch.setattr(preprocessing.DefaultPreprocessing, "__call__", changed)
    with pytest.raises(SkewError) as caught:
        exported(delays, published.report_uri, tmp_path / "root")
    message = str(caught.value)
    assert "differs from the evaluation by" in message
    assert '"carrier":' in message  # the worst row is shown
    assert not list((tmp_path / "root").glob("*/saved_model.pb"))


def test_an_export_that_serves_something_else_is_refused(delays, published, tmp_path, monkeypatch):
    from components.export_model import signature

    real = signature.Served._outputs

    def skewed(self, encoded):
        hour = encoded["hour"]
        return real(self, {**encoded, "hour": tf.where(hour < 0, tf.zeros_like(hour), hour)})

    monkeypatch.setattr(signature.Served, "_outputs", skewed)
    with pytest.raises(SkewError, match="serving_default differs from the training path") as caught:
        exported(delays, published.report_uri, tmp_path / "root")
    assert '"hour": null' in str(caught.value)


def test_a_model_that_did_not_pass_is_not_exported(delays, tmp_path):
    report = evaluated(delays, tmp_path / "report", thresholds={"auc": {"min": 0.999}})
    with pytest.raises(InputError, match="says 'failed': auc is 0.8"):
        exported(delays, tmp_path / "report", tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert report.verdict == "failed"
    result = exported(delays, tmp_path / "report", tmp_path / "root", require_passed=False)
    assert result["version"] == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda report: (report / "report.json").write_text("{"), "the report is damaged"),
        (lambda report: (report / MANIFEST_NAME).unlink(), "no committed report"),
        (lambda report: (report / "reference.json").unlink(), "the report is damaged"),
    ],
    ids=["damaged", "not committed", "no reference"],
)
def test_a_damaged_report_is_refused(delays, published, tmp_path, damage, message):
    shutil.copytree(published.report_uri, tmp_path / "report")
    damage(tmp_path / "report")
    with pytest.raises(InputError, match=message):
        exported(delays, tmp_path / "report", tmp_path / "root")


def test_a_report_of_another_model_is_refused(delays, published, tmp_path):
    with pytest.raises(InputError, match="is of checkpoint step 120, but 60 is to be exported"):
        exported(delays, published.report_uri, tmp_path, checkpoint="60")
    dataset = commit_delays(tmp_path / "data", num_train=200, num_eval=100)
    commit_run(tmp_path / "run", dataset, "tests.models.delays", epochs=1)
    other = SimpleNamespace(data_uri=str(tmp_path / "data"), run_uri=str(tmp_path / "run"))
    with pytest.raises(InputError, match="is of training run"):
        exported(other, published.report_uri, tmp_path / "root")


def test_a_metric_that_the_report_lacks_cannot_promote(delays, published, tmp_path):
    with pytest.raises(InputError, match="no value of 'rmse'; it has accuracy"):
        exported(delays, published.report_uri, tmp_path, promote_metric="-rmse")


def test_a_table_that_would_not_be_saved_is_refused(tmp_path):
    run = _run(tmp_path, "tests.models.hidden_table", validated=False)
    evaluated(run, tmp_path / "report")
    with pytest.raises(InputError, match="keras.Layer or tf.Module that keeps it"):
        exported(run, tmp_path / "report", tmp_path / "root")


def test_keras_refuses_the_exported_folder_as_it_says(published):
    # keras-team/keras does not load SavedModels: evaluation asks the signature instead.
    import keras

    with pytest.raises(ValueError, match="File format not supported"):
        keras.models.load_model(published.result["model_uri"])


def test_the_champion_is_scored_on_the_same_examples(delays, published, tmp_path):
    thresholds = {"auc": {"min_change": -0.001}}
    report = evaluated(
        delays, tmp_path / "report", thresholds=thresholds, champion_root=str(published.root)
    )
    assert report.verdict == "passed"
    assert report.champion["version"] == 1
    assert report.metrics["auc"].champion == pytest.approx(report.metrics["auc"].value, abs=1e-6)
    change = report.champion["changes"]["auc"]
    assert change["value"] == pytest.approx(0, abs=1e-6)


def test_a_damaged_champion_cannot_decide(delays, published, tmp_path):
    shutil.copytree(published.root, tmp_path / "root")
    (tmp_path / "root" / "1" / "saved_model.pb").write_bytes(b"")
    report = evaluated(
        delays,
        tmp_path / "report",
        thresholds={"auc": {"min_change": 0.0}},
        champion_root=str(tmp_path / "root"),
    )
    assert report.verdict == "cannot decide"
    assert "saved_model.pb has 0 bytes" in report.reason


def test_an_export_root_without_champion_cannot_decide_about_changes(delays, tmp_path):
    report = evaluated(
        delays,
        tmp_path / "report",
        thresholds={"auc": {"min_change": 0.0}},
        champion_root=str(tmp_path / "root"),
    )
    assert report.verdict == "cannot decide"
    assert "has no champion yet" in report.reason


def _run(folder, module, **options):
    dataset = commit_delays(folder / "data", num_train=450, num_eval=150)
    commit_run(folder / "run", dataset, module, **options)
    assert open_store(str(folder / "run")).stat("run.json") is not None
    return SimpleNamespace(data_uri=str(folder / "data"), run_uri=str(folder / "run"))
