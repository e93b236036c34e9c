import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

PARAMS = {
    "label_column": "label",
    "model_module": "tests.train_model.small_model",
    "batch_size": 64,
    "epochs": 2,
    "thresholds": {"auc": {"min": 0.7}},
    "slices": [],
}


@pytest.fixture
def table(tmp_path):
    """A CSV file of 1,200 rows whose label follows from two numbers, some of them missing."""
    generator = random.Random(5)
    lines = ["a,b,label"]
    for number in range(1200):
        a, b = generator.gauss(0, 1), generator.gauss(0, 1)
        label = int(a - b + generator.gauss(0, 0.3) > 0)
        lines.append(f"{'' if number % 50 == 0 else round(a, 4)},{b:.4f},{label}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run_local(tmp_path, table):
    """Run the pipeline on the table with some parameters changed."""

    def run(
        workspace=None, params_file=None, pythonpath="", pipeline="train_and_export", **changes
    ):
        params = {"data_source": str(table), **PARAMS, **changes}
        path = tmp_path / "params.yaml"
        path.write_text(yaml.safe_dump(params))
        workspace = workspace or tmp_path / "workspace"
        return subprocess.run(
            [
                *(sys.executable, "-m", "pipelines.run_local"),
                *("--params", str(params_file or path), "--workspace", str(workspace)),
                *("--pipeline", pipeline),
            ],
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=400,
            env={**os.environ, "PYTHONPATH": str(pythonpath)},
        )

    return run


@pytest.fixture
def summary_of(tmp_path):
    """The summary that a run has left in its workspace."""
    return lambda folder=None: json.loads(
        ((folder or tmp_path / "workspace") / "summary.json").read_text()
    )
