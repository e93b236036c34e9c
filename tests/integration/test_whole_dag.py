"""The whole DAG on small data: from a CSV file to a SavedModel that answers a raw row."""

import json
import os
import subprocess
import sys

ASK = """
import json, sys
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answer = served(a=tf.constant([1.5, -1.5, float("nan")]), b=tf.constant([-0.5, 0.5, 0.25]))
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("components", "keras"))
print(json.dumps({"probability": answer["probability"].numpy().tolist(), "loaded": loaded}))
"""


def test_from_raw_data_to_a_model_that_answers_raw_rows(run_local, summary_of, tmp_path):
    done = run_local()
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of()
    assert summary["verdict"] == "passed"
    assert summary["state"] == "SUCCEEDED"
    assert summary["train"]["workers"] == 2
    assert summary["train"]["restarts"] == 0
    assert summary["metrics"]["auc"] > 0.7
    assert set(summary["seconds"]) == {
        *("make-tfrecords", "train-model", "evaluate-model", "export-model"),
    }
    for name in ("dataset_uri", "checkpoint_uri", "report_uri", "model_uri"):
        assert os.path.isdir(summary[name]), name

    answer = ask(summary["model_uri"])
    assert all(0 <= value <= 1 for value in answer["probability"])
    assert answer["probability"][0] > answer["probability"][1]  # by the sign of a - b
    assert "components" not in " ".join(answer["loaded"])

    again = run_local()
    assert again.returncode == 0, again.stdout + again.stderr
    second = summary_of()
    assert second["reused_dataset"]
    assert second["dataset_uri"] == summary["dataset_uri"]
    assert second["model_uri"] != summary["model_uri"]


def test_a_step_that_was_killed_is_retried_and_a_model_below_its_threshold_is_not_exported(
    run_local, summary_of, tmp_path
):
    done = run_local(
        model_module="tests.integration.falling_model",
        hyperparameters={"marker": str(tmp_path / "fell")},
        thresholds={"auc": {"min": 0.9999}},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "fell").exists()
    log = (tmp_path / "workspace" / "run.log").read_text()
    assert "SIGKILL" in log
    summary = summary_of()
    assert summary["verdict"] == "failed"
    assert "0.9999" in summary["reason"]
    assert summary["model_uri"] == ""


def ask(model_uri):
    done = subprocess.run(
        [sys.executable, "-c", ASK, model_uri],
        cwd="/",
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
