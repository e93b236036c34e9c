"""Committed or absent, on every store, whoever is killed and whoever races."""

import json
import multiprocessing
import os
import time

import pytest

from components.storage.base import crc32c_of_bytes
from components.storage.commit import (
    commit,
    fetch,
    files_of,
    open_committed,
    read_manifest,
    remove_garbage,
)
from components.storage.errors import AlreadyExistsError, CorruptObjectError
from components.storage.open import open_store

FILES = {"a": b"first", "deep/b": b"second" * 100}


def test_a_commit_is_read_back_and_verified(store, tmp_path):
    assert open_committed(store, "m.json") is None
    commit(store, "m.json", FILES, {"writer": "me", "answer": 42})
    manifest = open_committed(store, "m.json")
    assert manifest["answer"] == 42
    for file in files_of(manifest):
        fetch(store, file, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == FILES[file.name]
        assert file.crc32c == crc32c_of_bytes(FILES[file.name])


def test_the_second_committer_loses_and_is_told_who_won(store):
    commit(store, "m.json", FILES, {"writer": "the first one"})
    with pytest.raises(AlreadyExistsError, match="the first one"):
        commit(store, "m.json", FILES, {"writer": "the second one"})
    assert read_manifest(store, "m.json")["writer"] == "the first one"


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_damage_after_the_commit_is_named(store, damage):
    commit(store, "m.json", FILES, {"writer": "me"})
    if damage == "missing":
        store.delete("deep/b")
    else:
        store.write("deep/b", b"x")
    with pytest.raises(CorruptObjectError, match="deep/b"):
        open_committed(store, "m.json")


def test_changed_bytes_of_the_same_size_are_found_on_download(store, tmp_path):
    manifest = commit(store, "m.json", {"a": b"12345"}, {"writer": "me"})
    store.write("a", b"12345"[::-1])
    (file,) = files_of(manifest)
    with pytest.raises(CorruptObjectError, match="CRC32C"):
        fetch(store, file, tmp_path / "file")
    assert list(tmp_path.glob("file*")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": [{}]}'])
def test_a_manifest_that_is_not_one(store, text):
    store.write("m.json", text.encode())
    with pytest.raises(CorruptObjectError, match="m.json"):
        open_committed(store, "m.json")


def test_garbage_goes_by_age_and_committed_objects_stay(store):
    commit(store, "m.json", FILES, {"writer": "me"})
    store.write("left/behind", b"x")
    assert remove_garbage(store, "m.json", older_than_secs=3600) == []
    time.sleep(1.1)  # S3 keeps times in seconds
    assert remove_garbage(store, "m.json", older_than_secs=0.01) == ["left/behind"]
    assert open_committed(store, "m.json")["writer"] == "me"


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.faults)])
def test_one_of_sixteen_processes_wins_each_commit(root_uri, rounds):
    context = multiprocessing.get_context("fork" if root_uri.startswith("/") else "spawn")
    barrier, results = context.Barrier(16), context.Queue()
    processes = [
        context.Process(target=_race, args=(root_uri, number, rounds, barrier, results))
        for number in range(16)
    ]
    for process in processes:
        process.start()
    won = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    winners = sorted(number for numbers in won for number in numbers)
    assert winners == list(range(rounds))


def _race(root_uri, number, rounds, barrier, results):
    won = []
    for round_number in range(rounds):
        store = open_store(f"{root_uri}/{round_number}")
        barrier.wait()
        content = {f"data-{number}": str(number).encode() * 100}
        try:
            commit(store, "m.json", content, {"writer": str(number)})
            won.append(round_number)
        except AlreadyExistsError:
            manifest = open_committed(store, "m.json")
            assert [file.name for file in files_of(manifest)] == [f"data-{manifest['writer']}"]
    results.put(won)


@pytest.mark.parametrize("calls", range(4))
def test_a_writer_killed_at_any_point_leaves_nothing_visible(root_uri, calls):
    """The child is killed by itself, without any clean-up, before its n-th call to the store."""
    context = multiprocessing.get_context("fork" if root_uri.startswith("/") else "spawn")
    process = context.Process(target=_commit_and_die, args=(root_uri, calls))
    process.start()
    process.join()
    store = open_store(root_uri)
    if calls < 3:
        assert process.exitcode == 9
        assert open_committed(store, "m.json") is None
        commit(store, "m.json", FILES, {"writer": "the next attempt"})
    manifest = open_committed(store, "m.json")
    assert len(files_of(manifest)) == len(FILES)


def _commit_and_die(root_uri, calls):
    store = open_store(root_uri)
    left = [calls]

    def counted(function):
        def call(*arguments, **keywords):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return function(*arguments, **keywords)

        return call

    for name in ("write", "create", "upload"):
        setattr(store, name, counted(getattr(store, name)))
    commit(store, "m.json", FILES, {"writer": "the first attempt"})


def test_a_local_writer_killed_inside_a_write_leaves_only_what_no_reader_sees(tmp_path):
    (tmp_path / ".relay-tmp-0123").write_bytes(b"half of som")
    store = open_store(str(tmp_path))
    assert list(store.list()) == []
    store.write("a", json.dumps({}).encode())
    assert [found.name for found in store.list()] == ["a"]


def test_symbolic_links_do_not_lead_out_of_a_local_store(tmp_path):
    from components.contracts.errors import InputError
    from components.storage.errors import ObjectNotFoundError

    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/secret")
    store = open_store(str(root))
    with pytest.raises(InputError, match="symbolic link"):
        store.read("folder/secret")
    with pytest.raises(ObjectNotFoundError):
        store.read("file")
    assert list(store.list()) == []
