"""Bad input: one readable message, the right exit code, nothing half-written."""

import os
import subprocess
from pathlib import Path

import pytest

from components.contracts.errors import EXIT_BAD_INPUT, EXIT_PERMANENT

BROKEN_MODULES = {
    "does_not_import": "import no_such_package\n\ndef build_model(schema, hyperparameters): ...\n",
    "lacks_build_model": "def build(schema, hyperparameters): ...\n",
    "is_not_python": "def build_model(:\n",
}


def assert_one_message(done, *texts, code=EXIT_BAD_INPUT):
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    messages = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1, output
    for text in texts:
        assert text in messages[0]
    assert "Traceback" not in output


def assert_nothing_committed(workspace):
    names = {path.name for path in Path(workspace).rglob("*") if path.is_file()}
    assert not [name for name in names if name.endswith((".tfrecord", ".index"))]
    assert "dataset.json" not in names


def test_a_file_that_is_missing(run_local, tmp_path):
    done = run_local(data_source=str(tmp_path / "none.csv"))
    assert_one_message(done, str(tmp_path / "none.csv"), "does not exist")
    assert_nothing_committed(tmp_path / "workspace")


@pytest.mark.parametrize("text", ["", "a,b,label\n"], ids=["no-byte", "only-a-header"])
def test_a_file_without_rows(run_local, tmp_path, text):
    path = tmp_path / "empty.csv"
    path.write_text(text)
    assert_one_message(run_local(data_source=str(path)), "empty.csv")
    assert_nothing_committed(tmp_path / "workspace")


def test_a_label_column_that_is_not_there(run_local, tmp_path):
    done = run_local(label_column="lable")
    assert_one_message(done, "'lable'", "Did you mean 'label'?")
    assert_nothing_committed(tmp_path / "workspace")


def test_a_label_that_is_constant(run_local, tmp_path):
    path = tmp_path / "constant.csv"
    path.write_text("a,b,label\n" + "".join(f"{n},{n % 7},1\n" for n in range(100)))
    assert_one_message(run_local(data_source=str(path)), "label")
    assert_nothing_committed(tmp_path / "workspace")


@pytest.mark.parametrize("name", BROKEN_MODULES)
def test_a_model_module_that_cannot_be_used(run_local, tmp_path, name):
    (tmp_path / f"{name}.py").write_text(BROKEN_MODULES[name])
    done = run_local(model_module=name, pythonpath=tmp_path)
    assert_one_message(done, name)
    assert not list((tmp_path / "workspace").rglob("checkpoints"))


def test_an_unknown_parameter(run_local):
    assert_one_message(run_local(batchsize=3), "'batchsize'", "batch_size")


def test_a_workspace_on_a_full_disk(run_local, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        done = run_local(workspace=folder / "workspace")
        assert_one_message(done, "no space left", str(folder), code=EXIT_PERMANENT)
        assert_nothing_committed(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
