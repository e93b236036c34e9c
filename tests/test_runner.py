"""The first ring of retries, with real child processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from components import runner
from components.contracts.errors import EXIT_BAD_INPUT, EXIT_PERMANENT, EXIT_TERMINATED
from components.placement import place
from components.runner import RetryPolicy, run_step

QUICK = RetryPolicy(max_restarts=2, first_delay_secs=0.01, max_delay_secs=0.05)

PRELUDE = """
import json, os, pathlib, signal, sys, time
counter = pathlib.Path(os.environ["COUNTER"])
number = int(counter.read_text() or 0) if counter.exists() else 0
counter.write_text(str(number + 1))
def done(): pathlib.Path(RESULT).write_text(json.dumps({"attempts": number + 1}))
def fail(code, text):
    pathlib.Path(os.environ["RELAY_ERROR_FILE"]).write_text(text)
    print("error: " + text, file=sys.stderr)
    sys.exit(code)
"""


@pytest.fixture
def step(tmp_path, monkeypatch):
    """Make the step a Python text; returns how often it has been started."""
    counter = tmp_path / "counter"
    monkeypatch.setenv("COUNTER", str(counter))

    def use(text):
        def command_of(name, values):
            script = f"RESULT = {values['result']!r}\n" + PRELUDE + textwrap.dedent(text)
            return [sys.executable, "-c", script]

        monkeypatch.setattr(runner, "command_of", command_of)
        return lambda: int(counter.read_text())

    return use


def test_a_result_is_passed_on(step):
    step("done()")
    assert run_step("train_model", {}, policy=QUICK) == {"attempts": 1}


@pytest.mark.parametrize("end", ["sys.exit(200)", "sys.exit(143)", "os.kill(os.getpid(), 9)"])
def test_a_retryable_end_is_repeated(step, end):
    step(f"done() if number else {end}")
    assert run_step("train_model", {}, policy=QUICK) == {"attempts": 2}


@pytest.mark.parametrize("code", [EXIT_BAD_INPUT, EXIT_PERMANENT, 1])
def test_a_permanent_end_is_not(step, code):
    starts = step(f"fail({code}, 'no good')")
    with pytest.raises(SystemExit) as end:
        run_step("train_model", {}, policy=QUICK)
    assert end.value.code == code
    assert starts() == 1


def test_retries_end_and_say_how_many_there_were(step, capsys):
    starts = step("fail(200, 'the store is away')")
    with pytest.raises(SystemExit) as end:
        run_step("train_model", {}, policy=QUICK)
    assert end.value.code == EXIT_PERMANENT
    assert starts() == 3
    assert "the store is away (3 attempts)" in capsys.readouterr().err


def test_progress_refills_the_budget(step):
    starts = step("""
        pathlib.Path(os.environ["RELAY_PROGRESS_FILE"]).write_text(str(number))
        done() if number == 6 else sys.exit(200)
    """)
    run_step("train_model", {}, policy=QUICK)
    assert starts() == 7


def test_two_kills_without_progress_are_called_out_of_memory(step, capsys):
    starts = step("os.kill(os.getpid(), 9)")
    with pytest.raises(SystemExit) as end:
        run_step("train_model", {}, policy=QUICK)
    assert end.value.code == EXIT_PERMANENT
    assert starts() == 2
    assert "likely out of memory" in capsys.readouterr().err


def test_events_tell_a_follower_what_happens(step, tmp_path, monkeypatch):
    monkeypatch.setenv("RELAY_EVENTS", str(tmp_path / "events"))
    step("""
        print("converted 3 rows")
        done() if number else fail(200, "later")
    """)
    run_step("train_model", {}, policy=QUICK)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event["event"] for event in events if event["event"] != "log"] == [
        *("started", "retry", "finished"),
    ]
    assert {"converted 3 rows"} <= {event.get("line") for event in events}


def test_sigterm_reaches_the_step_and_ends_the_retries(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {os.getcwd()!r})
from components import runner
child = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(143));" \\
        "print('up', flush=True); time.sleep(60)"
runner.command_of = lambda step, values: [sys.executable, "-c", child]
runner.run_step("train_model", {{}})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == EXIT_TERMINATED
    assert time.monotonic() - began < 20
    process.stdout.close()


@pytest.mark.parametrize(
    ("artifact", "root", "data", "run", "task"),
    [
        (
            "minio://mlpipeline/v2/artifacts/train/0f9/make/11111111-2222-3333-4444-555555555555/ds",
            "",
            "minio://mlpipeline/v2/artifacts/train/0f9/make/11111111-2222-3333-4444-555555555555/ds",
            "minio://mlpipeline/v2/artifacts/train/0f9",
            "make",
        ),
        (
            "minio://mlpipeline/v2/artifacts/train/0f9/make/11111111-2222-3333-4444-555555555555/ds",
            "gs://data/root/",
            "gs://data/root/train/0f9/make/11111111-2222-3333-4444-555555555555/ds",
            "gs://data/root/train/0f9",
            "make",
        ),
        ("/w/runs/train-1/make/ds", "", "/w/runs/train-1/make/ds", "/w/runs/train-1", "make"),
        ("/w/runs/train-1/make/ds", "/d", "/d/train-1/make/ds", "/d/train-1", "make"),
    ],
    ids=["kfp", "kfp-with-storage-root", "local", "local-with-storage-root"],
)
def test_data_lies_beside_its_artifact_or_under_the_storage_root(artifact, root, data, run, task):
    placement = place(artifact, root)
    assert (placement.data_uri, placement.run_uri, placement.task) == (data, run, task)
