"""Several tasks share a conversion, on kfp.local: the bytes are those of one task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.contracts.dataset import MANIFEST_NAME
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions

ROOT = Path(__file__).resolve().parents[2]
NUM_SHARDS = 5
PROGRAM = """
import json, sys
from kfp import local
from pipelines.convert_in_parts import convert_in_parts
arguments = json.loads(sys.argv[1])
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2], raise_on_error=True)
print("DATASET", convert_in_parts(**arguments).output)
"""


@pytest.fixture
def run(tmp_path):
    """Run the pipeline; returns the dataset's uri and what was logged."""

    def run_pipeline(source, parts, **options):
        arguments = {
            "data_source": str(source),
            "label_column": "label",
            "parts": parts,
            "storage_root": str(tmp_path / "storage"),
            "convert_options": {"num_shards": NUM_SHARDS, "processes": 1, **options},
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(arguments), str(tmp_path / "runs")],
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RELAY_TASK_RETRIES": "0"},
        )
        log = done.stdout + done.stderr
        assert done.returncode == 0, log
        return log.partition("DATASET ")[2].split("\n")[0], log

    return run_pipeline


def contents(uri):
    """Files by name; of the manifest what does not name its writer."""
    found = {path.name: path.read_bytes() for path in Path(uri).rglob("*") if path.is_file()}
    manifest = json.loads(found.pop(MANIFEST_NAME))
    del manifest["writer"]
    return found, manifest


def in_one_process(source, folder):
    options = ConvertOptions(source=str(source), label="label", num_shards=NUM_SHARDS, processes=1)
    return make_tfrecords(options, str(folder)).uri


def test_two_tasks_write_what_one_process_writes(run, tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text("a,label\n" + "".join(f"{n},{n % 2}\n" for n in range(50_000)))
    uri, log = run(source, parts=2)
    assert contents(uri) == contents(in_one_process(source, tmp_path / "one"))
    assert f"{NUM_SHARDS} of {NUM_SHARDS} parts were converted before" in log
    again, log = run(source, parts=2)
    assert again == uri
    assert "already converted" in log
