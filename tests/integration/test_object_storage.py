"""The whole DAG with its data on gs://, over a connection that fails one request in five."""

import os

import pytest

from components.storage import gcs
from components.storage.open import open_store
from pipelines.compile import COMPILED
from tests.servers.faulty_proxy import FaultyProxy, sometimes
from tests.servers.object_stores import gcs_server
from tests.storage.conftest import use_gcs

# A credential in the environment must be in nothing that a run writes.
PLANTED = "planted-f3a1c07b"


@pytest.mark.slow
def test_the_main_job_on_a_store_that_fails_a_fifth_of_requests(
    run_local, summary_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    monkeypatch.setenv("RELAY_S3_SECRET_DIR", f"/{PLANTED}")
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
        everything = {
            found.name: store.read(found.name)
            for store in (open_store("gs://bucket/root"), open_store("gs://bucket/models"))
            for found in store.list()
        }
    written = [path for path in (tmp_path / "workspace").rglob("*") if path.is_file()]
    everything |= {str(path): path.read_bytes() for path in [*written, *COMPILED.iterdir()]}
    assert len(everything) > 20
    leaks = [name for name, data in everything.items() if PLANTED.encode() in data]
    assert leaks == []
    assert PLANTED not in done.stdout + done.stderr
