import os
import secrets

import pytest

from components.storage import gcs, s3
from components.storage.open import open_store
from components.storage.retry import Deadlines
from tests.servers.object_stores import ACCESS_KEY, SECRET_KEY, gcs_server, s3_server, versitygw

QUICK = Deadlines(total_secs=20.0, attempt_secs=5.0)


@pytest.fixture(scope="session")
def gcs_address():
    """Address of a GCS server with the bucket `bucket`."""
    with gcs_server() as address:
        with use_gcs(address):
            gcs._client(os.getpid()).create_bucket("bucket")
        yield address


@pytest.fixture(scope="session")
def s3_address(tmp_path_factory):
    """Address of an S3 server with the bucket `bucket`."""
    if versitygw() is None:
        pytest.skip("no S3 server here: `make tools` builds it where Go is installed")
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        with use_s3(address):
            s3._client(os.getpid(), "s3").create_bucket(Bucket="bucket")
        yield address


class use_gcs:
    """Point the GCS client at an address for a while."""

    def __init__(self, address):
        self._patch = pytest.MonkeyPatch()
        self._address = address

    def __enter__(self):
        self._patch.setenv("STORAGE_EMULATOR_HOST", self._address)
        gcs._client.cache_clear()

    def __exit__(self, *error):
        self._patch.undo()
        gcs._client.cache_clear()


class use_s3:
    """Point the S3 client at an address for a while."""

    def __init__(self, address):
        self._patch = pytest.MonkeyPatch()
        self._address = address

    def __enter__(self):
        self._patch.setenv("AWS_ENDPOINT_URL", self._address)
        self._patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        self._patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        s3._client.cache_clear()

    def __exit__(self, *error):
        self._patch.undo()
        s3._client.cache_clear()


@pytest.fixture(params=["local", "gs", "s3"])
def root_uri(request, tmp_path):
    """A fresh root on each kind of store."""
    name = f"root-{secrets.token_hex(6)}"
    if request.param == "local":
        yield str(tmp_path / name)
    elif request.param == "gs":
        with use_gcs(request.getfixturevalue("gcs_address")):
            yield f"gs://bucket/{name}"
    else:
        with use_s3(request.getfixturevalue("s3_address")):
            yield f"s3://bucket/{name}"


@pytest.fixture
def store(root_uri):
    return open_store(root_uri, deadlines=QUICK)
