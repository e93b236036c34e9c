"""Runs and schedules on a Kubeflow Pipelines server: `python -m pipelines.server --help`.

Thin: each command prints the `kfp` command that does the same, and runs it where that command does
what it says. `kfp recurring-run create` does not (it makes disabled schedules and refuses numbers),
so schedules go through the SDK.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.contracts.errors import EXIT_OK, EXIT_PERMANENT, InputError, run_main
from pipelines.run_local import read_params

COMPILED = Path("pipelines") / "compiled"
EXPERIMENT = "relay"
_DONE = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_POLL_SECS = 5.0
# Parameters of the local runner that a server knows nothing of.
_LOCAL_ONLY = ("prepare",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0 if the run it follows succeeded."""
    given = _parser().parse_args(arguments)
    if not given.endpoint:
        raise InputError(
            "no server: set KFP_ENDPOINT to its address, such as http://localhost:8080 after "
            "kubectl -n kubeflow port-forward service/ml-pipeline-ui 8080:80"
        )
    command = {"submit": submit, "status": status, "schedule": schedule, "unschedule": unschedule}
    return command[given.command](given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.server", description=__doc__)
    parser.add_argument("command", choices=("submit", "status", "schedule", "unschedule"))
    parser.add_argument("--endpoint", default=os.environ.get("KFP_ENDPOINT", ""))
    parser.add_argument("--pipeline", default="train_and_export", help="name of its file")
    parser.add_argument("--params", type=Path, help="YAML file of parameters")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--name", default="", help="of the run or the schedule")
    parser.add_argument("--cron", default="", help="six fields, seconds first: 0 0 4 * * *")
    parser.add_argument("--run", default="", help="status: id of the run; empty: the newest")
    return parser


def submit(given: argparse.Namespace) -> int:
    """Create a run by the CLI and follow it to its end."""
    name = given.name or given.pipeline.replace("_", "-")
    command = [
        *("run", "create", "--experiment-name", EXPERIMENT, "--run-name", name),
        *("--package-file", str(_package(given.pipeline))),
        *(f"{key}={_as_text(value)}" for key, value in _params(given).items()),
    ]
    created = json.loads(_kfp(given.endpoint, command))
    return follow(_client(given.endpoint), created["run_id"])


def status(given: argparse.Namespace) -> int:
    """Follow a run to its end."""
    client = _client(given.endpoint)
    run_id = given.run
    if not run_id:
        experiment = client.get_experiment(experiment_name=EXPERIMENT)
        found = client.list_runs(
            experiment_id=experiment.experiment_id, sort_by="created_at desc", page_size=1
        ).runs
        if not found:
            raise InputError(f"there is no run in the experiment {EXPERIMENT!r} yet")
        run_id = found[0].run_id
    _tell(given.endpoint, ["run", "get", run_id])
    return follow(client, run_id)


def schedule(given: argparse.Namespace) -> int:
    """Make a recurring run: one at a time, and none for times that have passed."""
    if not given.cron or len(given.cron.split()) != 6:
        raise InputError(
            f"cron is {given.cron!r}, expected six fields, seconds first: '0 0 4 * * *' is every "
            "day at four"
        )
    client, name = _client(given.endpoint), given.name or given.pipeline.replace("_", "-")
    if _schedules(client, name):
        raise InputError(
            f"there is a schedule {name!r} already: make unschedule NAME={name}, or another name"
        )
    params = _params(given)
    _tell(
        given.endpoint,
        [
            *("recurring-run", "create", "--enabled", "--no-catchup", "--max-concurrency", "1"),
            *("--experiment-name", EXPERIMENT, "--job-name", name),
            *("--cron-expression", given.cron),
            *("--pipeline-package-path", str(_package(given.pipeline))),
            *(f"{key}={_as_text(value)}" for key, value in params.items()),
        ],
        note="by the SDK, because this command refuses numbers",
    )
    created = client.create_recurring_run(
        experiment_id=client.create_experiment(EXPERIMENT).experiment_id,
        job_name=name,
        cron_expression=given.cron,
        max_concurrency=1,
        no_catchup=True,
        pipeline_package_path=str(_package(given.pipeline)),
        params=params,
        enabled=True,
    )
    print(f"schedule {name}: {created.recurring_run_id}")
    return EXIT_OK


def unschedule(given: argparse.Namespace) -> int:
    """Delete the recurring runs of a name."""
    client, name = _client(given.endpoint), given.name or given.pipeline.replace("_", "-")
    found = _schedules(client, name)
    if not found:
        raise InputError(f"there is no schedule {name!r}")
    for entry in found:
        _tell(given.endpoint, ["recurring-run", "delete", entry.recurring_run_id])
        client.delete_recurring_run(entry.recurring_run_id)
    return EXIT_OK


def follow(client: Any, run_id: str, *, poll_secs: float = _POLL_SECS) -> int:
    """Print what a run's tasks do until it has ended, and at last why it failed."""
    shown: dict[str, str] = {}
    while True:
        run = client.get_run(run_id)
        tasks = _tasks(run)
        for name, (state, _) in tasks.items():
            if shown.get(name) != state:
                print(f"   {name:24} {state.lower()}", flush=True)
                shown[name] = state
        if run.state in _DONE:
            break
        time.sleep(poll_secs)
    print(f"== run {run_id} {run.state.lower()}")
    if run.state == "SUCCEEDED":
        return EXIT_OK
    for name, (state, reason) in tasks.items():
        if state == "FAILED":
            print(f"   {name}: {reason or 'no reason is recorded; its log has it'}")
    if run.error is not None and run.error.message:
        print(f"   {run.error.message}")
    return EXIT_PERMANENT


def _tasks(run: Any) -> dict[str, tuple[str, str]]:
    """State and error of every task that has begun, drivers and the DAG's own nodes left out."""
    details = run.run_details.task_details if run.run_details else None
    found = {}
    for task in details or ():
        name = task.display_name or ""
        if name and task.state and not name.endswith("-driver") and name != "root":
            found[name] = (task.state, task.error.message if task.error else "")
    return found


def _params(given: argparse.Namespace) -> dict[str, Any]:
    params = read_params(given.params, given.set) if given.params else {}
    return {key: value for key, value in params.items() if key not in _LOCAL_ONLY}


def _as_text(value: Any) -> str:
    """A value as the CLI reads it back: a text that looks like a number or JSON is quoted."""
    if not isinstance(value, str):
        return json.dumps(value)
    for read in (json.loads, float):
        with contextlib.suppress(ValueError):
            read(value)
            return json.dumps(value)
    return json.dumps(value) if value.lower() in ("true", "false") else value


def _package(pipeline: str) -> Path:
    path = COMPILED / f"{pipeline}.yaml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in COMPILED.glob("*.yaml")))
        raise InputError(f"there is no {path}: run make compile, or choose one of {known}")
    return path


def _schedules(client: Any, name: str) -> list[Any]:
    found, token = [], ""
    while True:
        answer = client.list_recurring_runs(page_token=token, page_size=100)
        found += [entry for entry in answer.recurring_runs or () if entry.display_name == name]
        token = answer.next_page_token
        if not token:
            return found


def _client(endpoint: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is for servers newer than 2.0
        import kfp

        return kfp.Client(host=endpoint)


def _tell(endpoint: str, command: Sequence[str], *, note: str = "") -> None:
    line = shlex.join(["kfp", "--endpoint", endpoint, *command])
    print(f"+ {line}" + (f"    # {note}" if note else ""), flush=True)


def _kfp(endpoint: str, command: Sequence[str]) -> str:
    """Run a command of the kfp CLI and return the JSON that it prints."""
    _tell(endpoint, command)
    program = Path(sys.executable).parent / "kfp"
    done = subprocess.run(
        [program, "--endpoint", endpoint, "--output", "json", *command],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    if done.returncode:
        raise InputError(f"kfp refused it: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout[done.stdout.index("{") :]


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


if __name__ == "__main__":
    sys.exit(run_main(main))
