"""What every store promises, on every store."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from components.contracts.errors import InputError
from components.storage.base import crc32c_of_bytes
from components.storage.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    ObjectNotFoundError,
)
from components.storage.open import open_store

NAMES = [
    "plain",
    "with space",
    "a#b",
    "50%",
    "what?",
    "grün/日本",
    "deep/er/name",
    "trailing.",
    "a+b&c",
]


def test_what_was_written_is_read_back(store):
    store.write("a/b", b"one")
    assert store.read("a/b") == b"one"
    store.write("a/b", b"two")
    assert store.read("a/b") == b"two"
    found = store.stat("a/b")
    assert (found.name, found.size) == ("a/b", 3)


def test_an_empty_object_is_an_object(store):
    store.write("empty", b"")
    assert store.read("empty") == b""
    assert store.stat("empty").size == 0


def test_absent_objects(store, tmp_path):
    assert store.stat("none") is None
    with pytest.raises(ObjectNotFoundError, match="none"):
        store.read("none")
    with pytest.raises(ObjectNotFoundError, match="none"):
        store.download("none", tmp_path / "file")
    assert not (tmp_path / "file").exists()
    store.delete("none")
    assert list(store.list()) == []


def test_create_only_if_absent(store):
    store.create("once", b"first")
    with pytest.raises(AlreadyExistsError, match="once"):
        store.create("once", b"second")
    assert store.read("once") == b"first"
    store.delete("once")
    store.create("once", b"third")
    assert store.read("once") == b"third"


def test_compare_and_set(store):
    store.create("value", b"1")
    data, generation = store.read_versioned("value")
    assert data == b"1"
    store.replace("value", b"2", generation=generation)
    with pytest.raises(ConflictError, match="value"):
        store.replace("value", b"3", generation=generation)
    assert store.read("value") == b"2"
    _, generation = store.read_versioned("value")
    store.delete("value")
    with pytest.raises(ConflictError):
        store.replace("value", b"4", generation=generation)
    assert store.stat("value") is None


def test_one_of_many_creators_wins(store):
    def attempt(number):
        try:
            store.create("race", str(number).encode())
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(attempt, range(8)) if number is not None]
    assert len(winners) == 1
    assert store.read("race") == str(winners[0]).encode()


@pytest.mark.parametrize("size", [0, 1, 1000, 9 << 20, 40 << 20], ids=lambda size: f"{size}B")
def test_files_go_up_and_come_down(store, tmp_path, size):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    stat = store.upload("file", source)
    assert stat.size == size
    crc = crc32c_of_bytes(source.read_bytes())
    store.download("file", tmp_path / "in/to", size=size, crc32c=crc)
    assert (tmp_path / "in/to").read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["to"]


def test_a_file_given_away_is_stored_as_it_was(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)
    stat = store.upload("folder/file", source, move=True)
    assert (stat.size, store.read("folder/file")) == (1000, b"x" * 1000)
    assert [found.name for found in store.list("folder/")] == ["folder/file"]


def test_a_download_that_is_not_what_was_promised_leaves_no_file(store, tmp_path):
    store.write("file", b"abc")
    with pytest.raises(CorruptObjectError, match="3 bytes, expected 4"):
        store.download("file", tmp_path / "file", size=4)
    with pytest.raises(CorruptObjectError, match="CRC32C"):
        store.download("file", tmp_path / "file", size=3, crc32c=1)
    assert list(tmp_path.glob("file*")) == []


def test_listing_is_ordered_and_by_prefix(store):
    names = ["b", "a/2", "a/10", "a/1", "ab", "ä", "a-b/c"]
    for name in names:
        store.write(name, name.encode())
    assert [found.name for found in store.list()] == sorted(names, key=str.encode)
    assert [found.name for found in store.list("a/")] == ["a/1", "a/10", "a/2"]
    assert [found.name for found in store.list("a/1")] == ["a/1", "a/10"]
    assert [found.size for found in store.list("ä")] == [2]


def test_a_long_listing_has_every_page(store):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.write(f"many/{number:05d}", b""), range(1100)))
    assert [found.name for found in store.list("many/")] == [f"many/{n:05d}" for n in range(1100)]
    assert store.delete_prefix("many/") == 1100
    assert list(store.list()) == []


@pytest.mark.parametrize("name", NAMES)
def test_names_stand_for_themselves(store, name):
    store.write(name, name.encode())
    assert [found.name for found in store.list()] == [name]
    assert store.read(name) == name.encode()
    assert open_store(store.uri_of(name).rpartition("/")[0]).read(name.rpartition("/")[2])
    store.delete(name)
    assert store.stat(name) is None


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", ".", "a/.", "a\nb", "a/"])
def test_names_that_no_store_takes(store, name):
    with pytest.raises(InputError, match="object name"):
        store.write(name, b"")


def test_roots_do_not_see_each_other(root_uri):
    inner, beside = open_store(root_uri + "/in ner/"), open_store(root_uri + "/in ner2")
    inner.write("a", b"1")
    beside.write("a", b"2")
    assert inner.read("a") == b"1"
    assert [found.name for found in open_store(root_uri).list("in ner/")] == ["in ner/a"]
    assert inner.delete_prefix("") == 1
    assert beside.read("a") == b"2"


@pytest.mark.parametrize("uri", ["ftp://host/a", "hdfs://a/b", "wasb://x"])
def test_other_schemes_are_refused_with_what_there_is(uri):
    with pytest.raises(InputError, match="gs://, s3://, minio://.*storage_root"):
        open_store(uri)


@pytest.mark.parametrize("uri", ["gs://", "s3:///a"])
def test_a_uri_without_a_bucket(uri):
    with pytest.raises(InputError, match="names no bucket"):
        open_store(uri)


def test_kubeflows_own_store_is_reached_by_its_scheme_and_secret(s3_address, tmp_path, monkeypatch):
    from components.storage import s3
    from tests.servers.object_stores import ACCESS_KEY, SECRET_KEY

    (tmp_path / "accesskey").write_text(ACCESS_KEY + "\n")
    (tmp_path / "secretkey").write_text(SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("RELAY_S3_SECRET_DIR", str(tmp_path))
    s3._client.cache_clear()
    try:
        store = open_store("minio://bucket/v2/artifacts")
        store.write("a", b"1")
        assert store.read("a") == b"1"
        assert store.uri_of("a") == "minio://bucket/v2/artifacts/a"
    finally:
        s3._client.cache_clear()
