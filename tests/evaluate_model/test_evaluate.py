import json
import shutil
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from components.contracts.errors import InputError, PermanentError
from components.contracts.report import MANIFEST_NAME, Report, read_report
from components.evaluate_model.evaluate import evaluate_model, result_of
from components.evaluate_model.options import EvaluateOptions
from components.storage.commit import files_of, read_manifest
from components.storage.open import open_store
from tests.trained_runs import commit_delays, commit_rows, commit_run
from tests.trained_runs import delays as make_delays

SCHEMA = json.loads(files("components.contracts").joinpath("report.schema.json").read_text())


def evaluated(run, output, **options):
    values = {"dataset_uri": run.data_uri, "run_uri": run.run_uri, "slices": ("*",), **options}
    return evaluate_model(EvaluateOptions(**values), str(output))


def copied(run, folder):
    """Its own copy of a run, to be damaged."""
    shutil.copytree(run.data_uri, folder / "data")
    shutil.copytree(run.run_uri, folder / "run")
    return type(run)(data_uri=str(folder / "data"), run_uri=str(folder / "run"))


@pytest.mark.parametrize("name", ["delays", "shapes", "prices"])
def test_a_report_follows_the_published_schema_and_counts_every_example(request, tmp_path, name):
    run = request.getfixturevalue(name)
    report = evaluated(run, tmp_path / "report")
    stored = json.loads((tmp_path / "report" / "report.json").read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(stored)
    assert report.num_examples == run.dataset.splits["eval"]
    assert Report.from_json(stored) == read_report(open_store(str(tmp_path / "report")))
    assert report.passed
    for column in {row.column for row in report.slices}:
        rows = [row for row in report.slices if row.column == column]
        assert sum(row.num_examples for row in rows) == report.num_examples


def test_metrics_equal_those_of_keras_on_the_same_examples(delays, shapes, prices, tmp_path):
    pairs = [
        (delays, "log_loss", "compiled_loss"),
        (delays, "accuracy", "compiled_accuracy"),
        (shapes, "log_loss", "compiled_loss"),
        (shapes, "accuracy", "compiled_accuracy"),
        (prices, "mae", "compiled_mae"),
    ]
    reports = {}
    for run, ours, theirs in pairs:
        if run.run_uri not in reports:
            reports[run.run_uri] = evaluated(run, tmp_path / str(len(reports)))
        metrics = reports[run.run_uri].metrics
        assert metrics[ours].value == pytest.approx(metrics[theirs].value, rel=1e-5)
    binary = reports[delays.run_uri].metrics
    assert binary["auc"].value == pytest.approx(binary["compiled_auc"].value, abs=0.01)


def test_the_batch_size_changes_nothing(delays, tmp_path):
    small = evaluated(delays, tmp_path / "a", batch_size=37)
    large = evaluated(delays, tmp_path / "b", batch_size=4096)
    for name, metric in small.metrics.items():
        assert metric.value == pytest.approx(large.metrics[name].value, rel=1e-5)
    assert small.confusion_matrix == large.confusion_matrix


@pytest.mark.slow
def test_several_processes_come_to_the_same_report(delays, tmp_path):
    one = evaluated(delays, tmp_path / "one")
    two = evaluated(delays, tmp_path / "two", processes=2)
    assert two.confusion_matrix == one.confusion_matrix
    assert [(row.value, row.num_examples) for row in two.slices] == [
        (row.value, row.num_examples) for row in one.slices
    ]
    for name, metric in one.metrics.items():
        assert two.metrics[name].value == pytest.approx(metric.value, rel=1e-6)
        if metric.low is not None:
            assert two.metrics[name].low == pytest.approx(metric.low, rel=1e-6)
    assert (tmp_path / "two" / "reference.json").read_bytes() == (
        tmp_path / "one" / "reference.json"
    ).read_bytes()


@pytest.mark.slow
def test_damage_that_another_process_finds_ends_the_evaluation(delays, tmp_path):
    run = copied(delays, tmp_path)
    path = next((tmp_path / "data").glob("eval-00001*.tfrecord"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(PermanentError, match=r"eval-00001-of-00002\.tfrecord is damaged"):
        evaluated(run, tmp_path / "report", processes=2)


def test_slices_are_counted_like_rows_of_the_table(delays, tmp_path):
    report = evaluated(delays, tmp_path, slices=("carrier",))
    rows, _ = make_delays(2100)
    counts = {row.value: row.num_examples for row in report.slices}
    expected = {}
    for row in rows[1500:]:
        value = row["carrier"] or "(missing)"
        expected[value] = expected.get(value, 0) + 1
    assert counts == expected
    late = sum(row["late"] for row in rows[1500:] if row["carrier"] == "UA")
    observed = next(row for row in report.slices if row.value == "UA").metrics["observed_rate"]
    assert observed.value == late / expected["UA"]


def test_a_column_that_cannot_be_sliced_is_refused(prices, tmp_path):
    with pytest.raises(InputError, match="'rooms' is not a column that can be sliced; these can"):
        evaluated(prices, tmp_path, slices=("rooms",))


def test_a_threshold_on_a_slice_brings_the_slice_with_it(delays, tmp_path):
    thresholds = {"accuracy": {"slices": {"carrier=UA": {"min": 0.99}}}}
    report = evaluated(delays, tmp_path, slices=(), thresholds=thresholds)
    assert report.verdict == "failed"
    assert "accuracy on carrier=UA" in report.reason


def test_the_same_evaluation_is_found_again_and_another_one_is_refused(delays, tmp_path):
    first = evaluated(delays, tmp_path)
    before = (tmp_path / "report.json").stat().st_mtime_ns
    assert evaluated(delays, tmp_path) == first
    assert (tmp_path / "report.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="holds the report of another evaluation"):
        evaluated(delays, tmp_path, thresholds={"auc": {"min": 0.5}})


def test_what_an_earlier_attempt_left_is_replaced(delays, tmp_path):
    (tmp_path / "report.html").write_text("half a pa")
    evaluated(delays, tmp_path)
    manifest = read_manifest(open_store(str(tmp_path)), MANIFEST_NAME)
    sizes = {file.name: file.size for file in files_of(manifest)}
    assert (tmp_path / "report.html").stat().st_size == sizes["report.html"] > 10_000


def test_the_result_is_plain_json_for_the_component(delays, shapes, prices, tmp_path):
    for index, run in enumerate((delays, shapes, prices)):
        uri = str(tmp_path / str(index))
        result = result_of(evaluated(run, uri), uri)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert all(type(value) is float for value in result["metrics"].values())
        assert Path(result["html"]).is_file()
    assert result["roc"] == {}
    assert result["confusion_matrix"] == {}


def test_an_evaluation_by_hand_writes_result_and_page(delays, tmp_path):
    from components.evaluate_model.__main__ import main

    main(
        [
            f"--dataset-uri={delays.data_uri}",
            f"--run-uri={delays.run_uri}",
            f"--output-uri={tmp_path / 'report'}",
            '--thresholds={"auc": {"min": 0.99}}',
            '--slices=["carrier"]',
            f"--result={tmp_path / 'result.json'}",
            f"--html={tmp_path / 'page.html'}",
        ]
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["verdict"] == "failed"
    assert result["passed"] is False
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("checkpoint", ["newest", "best:val_auc", "best:-val_loss", "120"])
def test_a_checkpoint_is_chosen_by_name_or_step(delays, tmp_path, checkpoint):
    assert evaluated(delays, tmp_path, checkpoint=checkpoint).checkpoint_step == 120


@pytest.mark.parametrize("checkpoint", ["best:val_nothing", "7", "latest"])
def test_a_checkpoint_that_is_not_there_is_refused(delays, tmp_path, checkpoint):
    with pytest.raises(InputError, match="checkpoint"):
        evaluated(delays, tmp_path, checkpoint=checkpoint)


def test_layouts_and_compression_give_the_same_report(tmp_path):
    found = []
    for name, options in {
        "columns": {},
        "packed": {"layout": "packed"},
        "gzip": {"compression": "GZIP"},
    }.items():
        folder = tmp_path / name
        dataset = commit_delays(folder / "data", num_train=300, num_eval=300, **options)
        commit_run(folder / "run", dataset, "tests.models.delays", epochs=1)
        options = EvaluateOptions(dataset_uri=str(folder / "data"), run_uri=str(folder / "run"))
        report = evaluate_model(options, str(folder / "report"))
        found.append({name: metric.value for name, metric in report.metrics.items()})
    for other in found[1:]:
        assert found[0] == pytest.approx(other, rel=1e-5)


def test_one_class_cannot_decide(tmp_path):
    rows, schema = make_delays(400)
    splits = {"train": rows[:300], "eval": [{**row, "late": 0} for row in rows[300:]]}
    dataset = commit_rows(tmp_path / "data", schema, splits, tag="one-class")
    commit_run(tmp_path / "run", dataset, "tests.models.delays", epochs=1)
    options = EvaluateOptions(
        dataset_uri=str(tmp_path / "data"),
        run_uri=str(tmp_path / "run"),
        thresholds={"auc": {"min": 0.5}},
    )
    report = evaluate_model(options, str(tmp_path / "report"))
    assert report.verdict == "cannot decide"
    assert report.reason == ("auc is not defined: every example of the split has the label 'no'.")


def test_a_model_that_says_nan_never_passes(tmp_path):
    def spoil(model):
        model.layers[-1].bias.assign([np.nan])

    dataset = commit_delays(tmp_path / "data", num_train=200, num_eval=150)
    commit_run(
        tmp_path / "run", dataset, "tests.models.delays", epochs=1, spoil=spoil, validated=False
    )
    options = EvaluateOptions(dataset_uri=str(tmp_path / "data"), run_uri=str(tmp_path / "run"))
    report = evaluate_model(options, str(tmp_path / "report"))
    assert report.verdict == "failed"
    assert report.reason == "150 of 150 outputs of the model are not finite numbers."
    jsonschema.Draft202012Validator(SCHEMA).validate(report.to_json())


def test_a_preprocessing_that_changed_since_training_fails(delays, tmp_path, monkeypatch):
    from components.contracts import preprocessing

    real = preprocessing.DefaultPreprocessing.__call__

    def changed(self, columns):
        return real(self, {**columns, "wind": columns["wind"] * 3.6})

    monkeypatch.setattr(preprocessing.DefaultPreprocessing, "__call__", changed)
    report = evaluated(delays, tmp_path)
    assert report.verdict == "failed"
    assert "its preprocessing is not what it was in training" in report.reason


def test_of_several_outputs_the_first_is_scored(tmp_path):
    dataset = commit_delays(tmp_path / "data", num_train=600, num_eval=300)
    commit_run(tmp_path / "run", dataset, "tests.models.several", validated=False)
    options = EvaluateOptions(dataset_uri=str(tmp_path / "data"), run_uri=str(tmp_path / "run"))
    report = evaluate_model(options, str(tmp_path / "report"))
    assert report.metrics["auc"].value > 0.7


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "data"), "no committed dataset"),
        (lambda folder: next((folder / "data").glob("eval-00001*.tfrecord")).unlink(), "missing"),
        (lambda folder: _cut(folder / "data", 7), "bytes instead of"),
        (lambda folder: _flip(folder / "data"), r"eval-00000-of-00002\.tfrecord is damaged"),
        (lambda folder: shutil.rmtree(folder / "run"), "not a training run"),
        (lambda folder: shutil.rmtree(folder / "run" / "checkpoints"), "no committed checkpoint"),
        (lambda folder: _flip_state(folder / "run"), "cannot be used.*CRC32C"),
    ],
    ids=["no data", "no shard", "cut", "flipped", "no run", "no checkpoint", "bad state"],
)
def test_damage_is_named_and_nothing_is_committed(delays, tmp_path, damage, message):
    run = copied(delays, tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        evaluated(run, tmp_path / "report")
    assert not (tmp_path / "report" / MANIFEST_NAME).exists()


def test_the_dataset_must_be_the_one_trained_on(delays, tmp_path):
    other = commit_delays(tmp_path / "data", num_train=200, num_eval=150)
    with pytest.raises(InputError, match="was trained on a dataset with fingerprint"):
        evaluated(delays, tmp_path / "report", dataset_uri=other.uri)
    with pytest.raises(InputError, match=r"no split 'test'; it has .*'eval': 600"):
        evaluated(delays, tmp_path / "report", split="test")


def test_a_model_module_that_changed_its_layers_is_refused(delays, tmp_path):
    run = copied(delays, tmp_path)
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace("tests.models.delays", "tests.models.several"))
    with pytest.raises(InputError, match="model module or its hyperparameters changed"):
        evaluated(run, tmp_path / "report")


def _shard(folder):
    return next(folder.glob("eval-00000*.tfrecord"))


def _cut(folder, count):
    path = _shard(folder)
    path.write_bytes(path.read_bytes()[:-count])


def _flip(folder):
    path = _shard(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _flip_state(folder):
    path = next(folder.glob("checkpoints/*/state-*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-9] ^= 0xFF
    path.write_bytes(data)
