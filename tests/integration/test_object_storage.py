"""The whole DAG with its data on gs://, over a connection that fails one request in five."""

import os

import pytest

from components.storage import gcs
from components.storage.open import open_store
from tests.servers.faulty_proxy import FaultyProxy, sometimes
from tests.servers.object_stores import gcs_server
from tests.storage.conftest import use_gcs


@pytest.mark.slow
def test_the_main_job_on_a_store_that_fails_a_fifth_of_requests(run_local, summary_of):
    with gcs_server() as address, FaultyProxy(address) as proxy, use_gcs(proxy.address):
        gcs._client(os.getpid()).create_bucket("bucket")
        proxy.choose = sometimes(0.2, seed=3)
        done = run_local(storage_root="gs://bucket/root", export_root="gs://bucket/models")
        proxy.choose = lambda method, path: None
        assert done.returncode == 0, done.stdout + done.stderr
        summary = summary_of()
        assert summary["verdict"] == "passed"
        for name in ("dataset_uri", "checkpoint_uri", "report_uri"):
            assert summary[name].startswith("gs://bucket/root/")
        assert summary["model_uri"] == "gs://bucket/models/1"
        names = {found.name for found in open_store(summary["model_uri"]).list()}
        assert "saved_model.pb" in names
        assert any(name.startswith("variables/") for name in names)
