"""Two runs at the same time over one storage root and one export root, on a local GCS server."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from components.contracts.published_model import read_champion
from components.storage import gcs
from components.storage.open import open_store
from tests.servers.object_stores import gcs_server
from tests.storage.conftest import use_gcs


@pytest.mark.slow
def test_two_runs_at_once_publish_two_versions_and_the_better_is_the_champion(
    run_local, summary_of, tmp_path
):
    with gcs_server() as address, use_gcs(address), ThreadPoolExecutor(2) as pool:
        gcs._client(os.getpid()).create_bucket("bucket")
        places = {"storage_root": "gs://bucket/root", "export_root": "gs://bucket/models"}
        folders = [tmp_path / "one", tmp_path / "two"]
        runs = [
            pool.submit(
                run_local, workspace=folder, hyperparameters={"learning_rate": rate}, **places
            )
            for folder, rate in zip(folders, (0.01, 0.03), strict=True)
        ]
        for run in runs:
            done = run.result()
            assert done.returncode == 0, done.stdout + done.stderr
        summaries = [summary_of(folder) for folder in folders]
        versions = {s["model_uri"].rpartition("/")[2]: s["metrics"]["auc"] for s in summaries}
        assert sorted(versions) == ["1", "2"]
        champion, _ = read_champion(open_store("gs://bucket/models"))
        assert champion.score == pytest.approx(max(versions.values()))
        # Each run has its own checkpoints and report.
        for name in ("checkpoint_uri", "report_uri"):
            assert len({summary[name] for summary in summaries}) == 2
        for summary in summaries:
            report = json.loads(open_store(summary["report_uri"]).read("report.json"))
            assert report["verdict"] == "passed"
