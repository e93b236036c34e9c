"""Runs and schedules through the real kfp client and CLI, against a server on loopback."""

import shlex

import pytest

from components.contracts.errors import InputError
from pipelines import server
from tests.servers.kfp_api import kfp_api


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setattr(server, "_POLL_SECS", 0.05)
    monkeypatch.chdir(server.__file__.rpartition("/pipelines/")[0])
    with kfp_api() as started:
        yield started


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(
        "data_source: gs://b/flights.csv\nlabel_column: '7'\nmodel_module: m\nepochs: 3\n"
        "thresholds: {auc: {min: 0.5}}\nprepare: examples.flights.data\n"
    )
    return str(path)


def task(name, state, error=""):
    return {
        "display_name": name,
        "state": state,
        **({"error": {"message": error}} if error else {}),
    }


def play(backend, *looks):
    """Let each look at a run show the next state and tasks; the last stays."""
    remaining = list(looks)

    def show(run):
        state, tasks = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        run["state"], run["run_details"] = state, {"task_details": tasks}

    backend.on_look = show


def call(backend, *arguments):
    return server.main([*arguments, "--endpoint", backend.endpoint])


def test_a_run_is_created_by_the_printed_command_and_followed(backend, params, capsys):
    play(
        backend,
        ("RUNNING", [task("root", "RUNNING"), task("Train", "RUNNING")]),
        ("SUCCEEDED", [task("Train", "SUCCEEDED"), task("Train-driver", "SUCCEEDED")]),
    )
    assert call(backend, "submit", "--params", params, "--name", "first") == 0
    [run] = backend.runs.values()
    assert run["display_name"] == "first"
    sent = run["runtime_config"]["parameters"]
    assert sent == {
        "data_source": "gs://b/flights.csv",
        "label_column": "7",
        "model_module": "m",
        "epochs": 3,
        "thresholds": {"auc": {"min": 0.5}},
    }
    out = capsys.readouterr().out
    words = shlex.split(next(line for line in out.splitlines() if line.startswith("+ "))[2:])
    assert words[:2] == ["kfp", "--endpoint"]
    assert words[3:5] == ["run", "create"]
    assert 'label_column="7"' in words
    assert "Train                    succeeded" in out
    assert "driver" not in out


def test_a_run_that_fails_ends_with_the_failing_task_and_its_reason(backend, params, capsys):
    play(
        backend,
        ("RUNNING", [task("Train", "RUNNING")]),
        ("FAILED", [task("Train", "FAILED", "worker 1: loss is nan at step 12")]),
    )
    assert call(backend, "submit", "--params", params) == 70
    assert "Train: worker 1: loss is nan at step 12" in capsys.readouterr().out


def test_the_newest_run_is_followed(backend, params, capsys):
    play(backend, ("SUCCEEDED", []))
    assert call(backend, "submit", "--params", params, "--name", "old") == 0
    assert call(backend, "submit", "--params", params, "--name", "new") == 0
    newest = list(backend.runs)[-1]
    capsys.readouterr()
    assert call(backend, "status") == 0
    assert f"== run {newest} succeeded" in capsys.readouterr().out


def test_a_schedule_runs_one_at_a_time_and_catches_nothing_up(backend, params, capsys):
    arguments = ("--params", params, "--pipeline", "retrain_and_promote", "--name", "nightly")
    assert call(backend, "schedule", *arguments, "--cron", "0 0 4 * * *") == 0
    [entry] = backend.recurringruns.values()
    assert entry["trigger"]["cron_schedule"]["cron"] == "0 0 4 * * *"
    assert int(entry["max_concurrency"]) == 1
    assert entry["no_catchup"] is True
    assert entry["mode"] == "ENABLE"
    assert entry["runtime_config"]["parameters"]["epochs"] == 3
    with pytest.raises(InputError, match="there is a schedule 'nightly' already"):
        call(backend, "schedule", *arguments, "--cron", "0 0 4 * * *")
    assert call(backend, "unschedule", "--name", "nightly") == 0
    assert backend.recurringruns == {}
    with pytest.raises(InputError, match="there is no schedule 'nightly'"):
        call(backend, "unschedule", "--name", "nightly")


@pytest.mark.parametrize("cron", ["", "0 4 * * *"])
def test_five_fields_are_no_schedule(backend, cron):
    with pytest.raises(InputError, match="expected six fields, seconds first"):
        call(backend, "schedule", "--cron", cron)


def test_without_a_server_its_variable_is_named(monkeypatch):
    with pytest.raises(InputError, match="set KFP_ENDPOINT"):
        server.main(["status", "--endpoint", ""])


def test_a_pipeline_that_is_not_compiled_is_told_with_those_that_are(backend):
    with pytest.raises(InputError, match="retrain_and_promote, train_and_export"):
        call(backend, "submit", "--pipeline", "other")
