"""What leaves the compiler: the golden file, from any directory, complete in every task."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kfp import components

from components import images
from pipelines.compile import COMPILED, PIPELINES, compiled

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(PIPELINES)


def documents(name):
    return yaml.safe_load((COMPILED / name).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_file_is_what_the_pipeline_compiles_to(name):
    assert (COMPILED / name).read_text() == compiled(PIPELINES[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_kfp_command_compiles_it_from_any_directory(name, tmp_path):
    program = ROOT / "pipelines" / name.replace(".yaml", ".py")
    output = tmp_path / "out.yaml"
    command = [Path(sys.executable).parent / "kfp", "dsl", "compile"]
    done = subprocess.run(
        [*command, "--py", program, "--output", output],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(output.read_text()) == documents(name)


@pytest.mark.parametrize("name", NAMES)
def test_kfps_own_loader_takes_the_file(name):
    assert components.load_component_from_file(str(COMPILED / name)).name == name[:-5].replace(
        "_", "-"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_task_states_image_resources_retries_and_cache(name):
    spec = documents(name)
    executors = spec["deploymentSpec"]["executors"]
    for executor in executors.values():
        container = executor["container"]
        assert container["image"] in (images.LAUNCHER, images.TENSORFLOW)
        assert container["resources"]["resourceCpuRequest"]
        assert container["resources"]["resourceMemoryRequest"]
    dags = [spec["root"], *spec["components"].values()]
    tasks = [task for dag in dags for task in dag.get("dag", {}).get("tasks", {}).values()]
    leaves = [
        task
        for task in tasks
        if "executorLabel" in spec["components"][task["componentRef"]["name"]]
    ]
    assert len(leaves) == len(executors)
    for task in leaves:
        assert task["retryPolicy"]["maxRetryCount"] >= 1
        assert int(task["retryPolicy"]["backoffMaxDuration"].rstrip("s")) >= 7 * 86400
        assert task["taskInfo"]["name"][0].isupper()
        assert not task.get("cachingOptions", {}).get("enableCache", False)


@pytest.mark.parametrize("name", NAMES)
def test_few_parameters_are_required_and_all_are_described(name):
    inputs = documents(name)["root"]["inputDefinitions"]["parameters"]
    required = {key for key, value in inputs.items() if not value.get("isOptional")}
    more = {
        "convert_in_parts.yaml": set(),
        "retrain_and_promote.yaml": {"model_module", "export_root"},
        "train_and_export.yaml": {"model_module"},
    }
    assert required == {"data_source", "label_column"} | more[name]
    assert all(value.get("description") for value in inputs.values())
