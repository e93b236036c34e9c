"""A server or a network that misbehaves: right results or an error by the deadline, no hang."""

import time

import pytest

from components.contracts.errors import InputError, RetryableError
from components.storage.commit import commit, files_of, open_committed
from components.storage.errors import AccessDeniedError, StoreUnavailableError
from components.storage.open import open_store
from components.storage.retry import Deadlines
from tests.servers.faulty_proxy import Fault, FaultyProxy, first, sometimes
from tests.servers.object_stores import gcs_emulator
from tests.storage.conftest import use_gcs, use_s3

QUICK = Deadlines(total_secs=20.0, attempt_secs=1.5)
SHORT = Deadlines(total_secs=2.0, attempt_secs=0.7)
BIG = bytes(range(256)) * 4096 * 9  # 9 MB: a resumable upload on GCS

FAULTS = {
    "429": Fault(429, headers={"Retry-After": "1"}),
    "408": Fault(408),
    "500": Fault(500),
    "503": Fault(503),
    "reset-at-start": Fault("reset", 0),
    "reset-in-the-middle": Fault("reset", 0.5),
    "reset-at-the-end": Fault("reset", 1),
    "truncated-at-start": Fault("truncate", 0),
    "truncated-in-the-middle": Fault("truncate", 0.5),
    "truncated-at-the-end": Fault("truncate", 1),
    "request-reset": Fault("reset-request"),
    "answer-lost": Fault("lose-answer"),
    "stall": Fault("stall", 0.5),
    "drip": Fault("drip"),
}


def do_read(store, tmp_path):
    assert store.read("there") == b"here"


def do_stat(store, tmp_path):
    assert store.stat("there").size == 4
    assert store.stat("not there") is None


def do_write(store, tmp_path):
    assert store.write("new", b"1").size == 1
    assert store.read("new") == b"1"


def do_create(store, tmp_path):
    store.create("once", b"mine")
    assert store.read("once") == b"mine"


def do_replace(store, tmp_path):
    _, generation = store.read_versioned("there")
    store.replace("there", b"else", generation=generation)
    assert store.read("there") == b"else"


def do_list(store, tmp_path):
    assert [found.name for found in store.list()] == ["there"]


def do_delete(store, tmp_path):
    store.delete("there")
    assert list(store.list()) == []


def do_transfer(store, tmp_path):
    (tmp_path / "source").write_bytes(BIG)
    assert store.upload("big", tmp_path / "source").size == len(BIG)
    store.download("big", tmp_path / "target", size=len(BIG))
    assert (tmp_path / "target").read_bytes() == BIG


OPERATIONS = [
    *(do_read, do_stat, do_write, do_create, do_replace, do_list, do_delete, do_transfer),
]


@pytest.fixture(params=["gs", "s3"])
def proxied(request, tmp_path):
    """(store behind a faulty proxy, the proxy); the object `there` holds `here`."""
    if request.param == "gs":
        address, use = request.getfixturevalue("gcs_address"), use_gcs
    else:
        address, use = request.getfixturevalue("s3_address"), use_s3
    with FaultyProxy(address) as proxy, use(proxy.address):

        def open_behind(deadlines=QUICK):
            store = open_store(f"{request.param}://bucket/{tmp_path.name}", deadlines=deadlines)
            if deadlines is QUICK:
                store.write("there", b"here")
            return store

        yield open_behind, proxy


def _grid():
    """All pairs; those that say the most are in every test run, the others in the full matrix."""
    for fault in FAULTS:
        for operation in OPERATIONS:
            quick = operation is do_create or fault in ("503", "truncated-in-the-middle")
            marks = [] if quick else [pytest.mark.faults]
            yield pytest.param(fault, operation, marks=marks, id=f"{fault}-{operation.__name__}")


@pytest.mark.parametrize(("fault", "operation"), list(_grid()))
def test_an_operation_outlives_a_fault(proxied, tmp_path, operation, fault):
    open_behind, proxy = proxied
    store = open_behind()
    proxy.choose = first(1, FAULTS[fault])
    operation(store, tmp_path)


@pytest.mark.parametrize("kind", [Fault("flip", 0), Fault("flip", 0.5), Fault("flip", 1)])
def test_bytes_damaged_on_the_way_are_noticed_and_fetched_again(proxied, tmp_path, kind):
    open_behind, proxy = proxied
    store = open_behind()
    (tmp_path / "source").write_bytes(BIG)
    store.upload("big", tmp_path / "source")
    served = []

    def choose(method, path):
        is_data = method == "GET" and "big" in path and ("alt=media" in path or "list" not in path)
        if is_data and not served:
            served.append(path)
            return kind
        return None

    proxy.choose = choose
    store.download("big", tmp_path / "target")
    assert served
    assert (tmp_path / "target").read_bytes() == BIG


def test_an_expired_upload_session_starts_over(proxied, tmp_path):
    open_behind, proxy = proxied
    store = open_behind()
    (tmp_path / "source").write_bytes(BIG * 3)
    gone = []

    def choose(method, path):
        if method == "PUT" and ("upload_id" in path or "partNumber=2" in path) and len(gone) < 2:
            gone.append(path)
            return Fault(410)
        return None

    proxy.choose = choose
    store.upload("big", tmp_path / "source")
    assert gone
    proxy.choose = lambda method, path: None
    store.download("big", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == BIG * 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_fails_at_once_and_names_what_is_missing(proxied, status):
    open_behind, proxy = proxied
    store = open_behind()
    before = proxy.num_requests
    proxy.choose = lambda method, path: Fault(status)
    for operation, permission in (
        (lambda: store.read("there"), "Get|get"),
        (lambda: store.write("there", b""), "Put|create"),
        (lambda: list(store.list()), "List|list"),
    ):
        with pytest.raises(AccessDeniedError, match=permission) as caught:
            operation()
        assert str(store.uri) in str(caught.value)
    assert proxy.num_requests == before + 3


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(503), id="503", marks=pytest.mark.faults),
        pytest.param(Fault("stall", 0), id="stall"),
        pytest.param(Fault("reset-request"), id="reset", marks=pytest.mark.faults),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_server_that_is_down_is_an_error_by_the_deadline(proxied, tmp_path, operation, fault):
    open_behind, proxy = proxied
    open_behind()
    store = open_behind(SHORT)
    proxy.choose = lambda method, path: fault
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        operation(store, tmp_path)
    assert isinstance(caught.value, RetryableError)
    assert str(store.uri) in str(caught.value)
    assert "attempt" in str(caught.value)
    # The deadline, the allowance for 9 MB, and room for a busy machine.
    assert time.monotonic() - began < 40


def test_commits_through_a_fifth_of_failures_are_whole_or_absent(proxied, tmp_path):
    open_behind, proxy = proxied
    store = open_behind()
    for number in range(10):
        proxy.choose = sometimes(0.2, seed=number)
        files = {f"{number}/a": b"1" * 1000, f"{number}/b": b"2" * 2000}
        commit(store, f"{number}/m.json", files, {"writer": f"me, {number}"})
        manifest = open_committed(store, f"{number}/m.json")
        assert len(files_of(manifest)) == 2


def test_a_token_that_expires_during_an_upload_is_refreshed(gcs_address, tmp_path, monkeypatch):
    import google.auth.credentials
    from google.cloud import storage

    from components.storage import gcs

    class Expiring(google.auth.credentials.Credentials):
        refreshed = 0

        def refresh(self, request):
            self.refreshed += 1
            self.token = f"token-{self.refreshed}"

    with FaultyProxy(gcs_address) as proxy:
        credentials = Expiring()
        client = storage.Client(
            project="p",
            credentials=credentials,
            client_options={"api_endpoint": proxy.address},
        )
        monkeypatch.setattr(gcs, "_client", lambda pid: client)
        store = open_store(f"gs://bucket/{tmp_path.name}", deadlines=QUICK)
        (tmp_path / "source").write_bytes(BIG * 8)
        chunks = []

        def choose(method, path):
            if b"token-1" in proxy.head and len(chunks) >= 1:
                return Fault(401)
            if method == "PUT":
                chunks.append(path)
            return None

        proxy.choose = choose
        store.upload("big", tmp_path / "source")
        assert credentials.refreshed >= 2
        store.download("big", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == BIG * 8


def test_large_files_on_a_server_that_is_strict_about_resumable_uploads(tmp_path):
    with gcs_emulator() as address, FaultyProxy(address) as proxy, use_gcs(proxy.address):
        store = open_store("gs://bucket/strict", deadlines=QUICK)
        (tmp_path / "source").write_bytes(BIG * 8)
        seen = []

        def choose(method, path):
            seen.append((method, path))
            chunks = [path for method, path in seen if method == "PUT"]
            return Fault(503) if method == "PUT" and len(chunks) in (2, 3) else None

        proxy.choose = choose
        store.upload("big", tmp_path / "source")
        assert len([path for method, path in seen if method == "PUT"]) >= 4
        store.download("big", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == BIG * 8
        assert [found.name for found in store.list()] == ["big"]


def test_missing_credentials_are_told_with_the_uri_and_the_permission(monkeypatch, tmp_path):
    from components.storage import gcs

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    gcs._client.cache_clear()
    try:
        with pytest.raises(AccessDeniedError, match="gs://bucket/run.*objects.get.*no cred"):
            open_store("gs://bucket/run")
    finally:
        gcs._client.cache_clear()


def test_credentials_are_in_no_message(proxied, caplog):
    from tests.servers.object_stores import SECRET_KEY

    open_behind, proxy = proxied
    store = open_behind()
    for fault in (403, 401, 503):
        proxy.choose = lambda method, path, fault=fault: Fault(fault)
        with pytest.raises((InputError, RetryableError)) as caught:
            open_store(store.uri, deadlines=SHORT).read("there")
        assert SECRET_KEY not in str(caught.value)
    assert SECRET_KEY not in caplog.text
