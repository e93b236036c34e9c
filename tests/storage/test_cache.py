"""The shard cache: bounded, verified, shared, and never blocked by the dead."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from components.contracts.errors import InputError
from components.storage.cache import ShardCache
from components.storage.commit import put
from components.storage.errors import CorruptObjectError
from components.storage.open import open_store

SIZE = 1000


@pytest.fixture
def files(tmp_path):
    """(store, four committed objects of SIZE bytes)."""
    store = open_store(str(tmp_path / "store"))
    return store, [put(store, f"s{n}", bytes([n]) * SIZE) for n in range(4)]


def read(cache, store, file):
    with cache.open(store, file) as path:
        return path.read_bytes()


def test_a_file_is_downloaded_once_for_many_readers(files, tmp_path, monkeypatch):
    store, shards = files
    cache = ShardCache(tmp_path / "cache")
    downloads = []
    original = store.download

    def slow(name, *arguments, **keywords):
        downloads.append(name)
        time.sleep(0.2)
        original(name, *arguments, **keywords)

    monkeypatch.setattr(store, "download", slow)
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda _: read(cache, store, shards[1]), range(8)))
    assert contents == [bytes([1]) * SIZE] * 8
    assert downloads == ["s1"]


def test_the_least_recently_used_goes_first_and_the_limit_holds(files, tmp_path):
    store, shards = files
    cache = ShardCache(tmp_path / "cache", max_bytes=2 * SIZE)
    for file in (shards[0], shards[1], shards[0], shards[2]):
        read(cache, store, file)
        assert cache.size() <= 2 * SIZE
    store.delete_prefix("")  # what is still there must come from the cache
    assert read(cache, store, shards[0]) == bytes([0]) * SIZE
    assert read(cache, store, shards[2]) == bytes([2]) * SIZE


def test_what_is_being_read_is_not_evicted(files, tmp_path):
    store, shards = files
    cache = ShardCache(tmp_path / "cache", max_bytes=SIZE)
    with cache.open(store, shards[0]) as path:
        read(cache, store, shards[1])
        assert path.read_bytes() == bytes([0]) * SIZE


def test_a_file_larger_than_the_cache(files, tmp_path):
    store, shards = files
    with pytest.raises(InputError, match="limited to 10"):
        read(ShardCache(tmp_path / "cache", max_bytes=10), store, shards[0])


def test_damage_is_found_and_nothing_of_it_stays(files, tmp_path):
    store, shards = files
    cache = ShardCache(tmp_path / "cache")
    store.write("s1", b"x" * SIZE)
    with pytest.raises(CorruptObjectError, match="CRC32C"):
        read(cache, store, shards[1])
    assert cache.size() == 0


def test_prefetch_runs_ahead(files, tmp_path):
    store, shards = files
    cache = ShardCache(tmp_path / "cache")
    cache.prefetch(store, shards).join(30)
    assert cache.size() == 4 * SIZE


def test_a_killed_reader_blocks_nobody(files, tmp_path):
    store, shards = files
    folder = tmp_path / "cache"
    ready = multiprocessing.Event()
    process = multiprocessing.get_context("fork").Process(
        target=_hold, args=(folder, store, shards[0], ready)
    )
    process.start()
    assert ready.wait(30)
    cache = ShardCache(folder, max_bytes=SIZE)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert read(cache, store, shards[1]) == bytes([1]) * SIZE
    assert cache.size() == SIZE


def _hold(folder, store, file, ready):
    with ShardCache(folder).open(store, file):
        ready.set()
        time.sleep(60)
