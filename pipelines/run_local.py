"""Run the pipeline on this machine: no cluster, no Docker, no cloud account.

`python -m pipelines.run_local --params examples/flights/params.yaml --workspace DIR`
"""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from components.contracts.errors import (
    EXIT_OK,
    InputError,
    error_for,
    run_main,
)
from components.runner import EVENTS_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
_POLL_SECS = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the DAG and print a short summary; returns the exit code of the step that failed."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.run_local",
        description="Run the whole pipeline on this machine, by the DAG that Kubeflow runs.",
    )
    parser.add_argument("--params", required=True, type=Path, help="YAML file of parameters")
    parser.add_argument("--workspace", required=True, type=Path, help="folder for all outputs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a parameter; a dotted name reaches into an options mapping",
    )
    parser.add_argument(
        "--pipeline",
        default="train_and_export",
        choices=("train_and_export", "retrain_and_promote"),
        help="which one (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    params = read_params(given.params, given.set)
    workspace = _prepared_workspace(given.workspace)
    _prepare_data(params, workspace)
    _check_module(str(params.get("model_module", "")))
    return _run(given.pipeline, params, workspace)


def read_params(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Read a parameter file and apply NAME=VALUE overrides (VALUE is read as YAML).

    Raises:
        InputError: no such file, not a mapping, or an override without a name.
    """
    try:
        params = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        raise InputError(f"there is no parameter file {path}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(params, dict):
        raise InputError(
            f"{path} holds a {type(params).__name__}, expected a mapping of parameters"
        )
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator or not name:
            raise InputError(f"--set {override!r}: expected NAME=VALUE")
        *parents, last = name.split(".")
        target = params
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = yaml.safe_load(text)
    return {name: _without_none(value) for name, value in params.items()}


def _without_none(value: Any) -> Any:
    """Kubeflow Pipelines has no null: what is left empty is an empty text."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items()}
    return "" if value is None else value


def _prepare_data(params: dict[str, Any], workspace: Path) -> None:
    """Have the module that `prepare` names make the data, unless data_source is given."""
    module = params.pop("prepare", "")
    if not module or "data_source" in params:
        return
    folder = workspace / "data"
    print(f"== {module}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, "--output", str(folder)]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise InputError(f"{module} could not make the data; its message is above")
    params["data_source"] = str(folder)


def _prepared_workspace(folder: Path) -> Path:
    workspace = Path(os.path.abspath(folder))
    workspace.mkdir(parents=True, exist_ok=True)
    return workspace


def _check_module(path: str) -> None:
    """Fail before any work if the model module cannot be the user's; runs none of its code."""
    sys.path[:0] = [entry for entry in (str(ROOT), os.getcwd()) if entry not in sys.path]
    try:
        found = importlib.util.find_spec(path) if path else None
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin:
        raise InputError(
            f"model_module {path!r} is not importable from {os.getcwd()}: give the dotted path "
            "of a module that defines build_model, like examples.flights.model"
        )
    try:
        tree = ast.parse(Path(found.origin).read_bytes(), found.origin)
    except SyntaxError as error:
        raise InputError(
            f"model_module {path!r} is not valid Python: {error.msg} "
            f"({found.origin}:{error.lineno})"
        ) from error
    names = {getattr(node, "name", "") for node in tree.body} | {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "build_model" not in names | assigned:
        raise InputError(
            f"model_module {path!r} ({found.origin}) does not define "
            "build_model(schema, hyperparameters)"
        )


def _run(name: str, params: Mapping[str, Any], workspace: Path) -> int:
    events = workspace / "events.jsonl"
    events.write_text("", encoding="utf-8")
    environment = {
        EVENTS_VARIABLE: str(events),
        "RELAY_LOG_FORMAT": "human",
        "RELAY_TASK_RETRIES": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.getcwd(), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(_temporary_folder(workspace)),
    }
    os.environ.update(environment)
    began = time.monotonic()
    here = {"launcher": "local", "export_root": str(workspace / "models")}
    pipeline = _pipeline(name)
    arguments = _checked_arguments(pipeline, {**here, **params})
    with _followed(events) as follower:
        signal.signal(signal.SIGTERM, follower.on_sigterm)
        failure = _run_dag(pipeline, arguments, workspace)
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    summary = _summary(workspace)
    if follower.failure:
        _print_failure(follower.failure, workspace)
        raise error_for(follower.failure["exit_code"], follower.failure["message"])
    if failure is not None:
        raise failure
    _print_summary(summary, workspace, time.monotonic() - began)
    return EXIT_OK


def _temporary_folder(workspace: Path) -> Path:
    folder = workspace / "tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _pipeline(name: str) -> Any:
    """The pipeline of that name; its definition reads the environment."""
    return getattr(importlib.import_module(f"pipelines.{name}"), name)


def _checked_arguments(pipeline: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The pipeline's arguments. Raises InputError for an unknown or missing one."""
    inputs = pipeline.pipeline_spec.root.input_definitions.parameters
    unknown = sorted(set(params) - set(inputs))
    if unknown:
        raise InputError(f"unknown parameter {unknown[0]!r}; there are {', '.join(sorted(inputs))}")
    missing = [name for name, spec in inputs.items() if not spec.is_optional and name not in params]
    if missing:
        raise InputError(f"the parameter {missing[0]!r} is required and not set")
    return params


def _run_dag(pipeline: Any, arguments: Mapping[str, Any], workspace: Path) -> Exception | None:
    """Run the DAG by kfp.local, its own output going to run.log; returns what it raised."""
    from kfp import local

    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(workspace / "runs"),
        raise_on_error=True,
    )
    with (workspace / "run.log").open("w", encoding="utf-8") as log:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                pipeline(**arguments)
            except Exception as error:
                return error
    return None


class _Follower:
    """Prints what the steps report, as it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._out = sys.stdout
        self._position = 0
        self._pid = 0
        self.failure: dict[str, Any] = {}

    def poll(self) -> None:
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._position)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._position += len(line.encode())
                self._show(json.loads(line))

    def on_sigterm(self, number: int, frame: Any) -> None:
        """Pass the signal on to the step that runs; the DAG then fails and is summarized."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _show(self, event: Mapping[str, Any]) -> None:
        step = event["step"]
        if event["event"] == "started":
            self._pid = event["pid"]
            self._print(f"\n== {step}")
        elif event["event"] in ("log", "retry"):
            if not event["line"].startswith("error: "):  # the last of them is told at the end
                self._print(f"   {event['line']}")
        elif event["event"] == "finished":
            self._pid = 0
            self._print(f"   done in {event['seconds']:.1f} s")
        elif event["event"] == "failed":
            self.failure = dict(event)

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


@contextlib.contextmanager
def _followed(events: Path) -> Iterator[_Follower]:
    follower = _Follower(events)
    done = threading.Event()

    def follow() -> None:
        while not done.wait(_POLL_SECS):
            follower.poll()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield follower
    finally:
        done.set()
        thread.join()
        follower.poll()


def _summary(workspace: Path) -> dict[str, Any]:
    """Copy the summary of the newest run, as its exit handler wrote it, to the workspace."""
    runs = sorted((workspace / "runs").glob("*/summarize-run/summary"), key=os.path.getmtime)
    if not runs:
        return {}
    text = runs[-1].read_text(encoding="utf-8")
    (workspace / "summary.json").write_text(text, encoding="utf-8")
    return dict(json.loads(text))


def _print_failure(failure: Mapping[str, Any], workspace: Path) -> None:
    print(f"\n{failure['step']} failed; the whole log is in {workspace / 'run.log'}", flush=True)


def _print_summary(summary: Mapping[str, Any], workspace: Path, seconds: float) -> None:
    if not summary["dataset_uri"]:
        print(f"\n== nothing new in {seconds:.0f} s: the data is that of a model judged before")
        return
    train = summary["train"]
    figures = ", ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items())
    print(f"\n== {summary['verdict']} in {seconds:.0f} s: {summary['reason']}")
    print(f"   metrics   {figures}")
    print(
        f"   training  {train['steps']} steps on {train['workers']} workers, "
        f"{train['restarts']} restarts"
    )
    for name in ("dataset", "checkpoint", "report", "model"):
        print(f"   {name:9} {summary[name + '_uri'] or '(none)'}")
    print(f"   summary   {workspace / 'summary.json'}", flush=True)


if __name__ == "__main__":
    sys.exit(run_main(main))
