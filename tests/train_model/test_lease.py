"""The launcher's lease: renewed in storage, missed by workers on their own clock."""

import json
import threading
import time

import pytest

from components.contracts.errors import RetryableError
from components.storage.open import open_store
from components.train_model.worker.lease import LEASE_MESSAGE, LEASE_NAME, LeaseHolder, LeaseWatch
from components.train_model.worker.status import Status, read_status


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path.as_uri())


def watch(store, lease_secs):
    lost = threading.Event()
    messages = []
    thread = LeaseWatch(store, lease_secs, lambda text: (messages.append(text), lost.set()))
    thread.start()
    return thread, lost, messages


def test_a_lease_that_is_renewed_is_not_lost(store):
    holder = LeaseHolder(store, 0.6)
    holder.start()
    thread, lost, _ = watch(store, 0.6)
    assert not lost.wait(2.0)
    thread.end()
    holder.release()
    thread.join()
    holder.join()
    assert json.loads(store.read(LEASE_NAME))["renewal"] > 1


def test_a_lease_that_nobody_renews_any_more_is_lost_once(store):
    store.write(LEASE_NAME, b"{}")
    thread, lost, messages = watch(store, 0.5)
    assert lost.wait(20)
    thread.join()
    assert len(messages) == 1
    assert messages[0].startswith(LEASE_MESSAGE)
    assert "lease.json" in messages[0]


def test_a_lease_that_never_was_is_lost_too(store):
    thread, lost, _ = watch(store, 0.5)
    assert lost.wait(20)
    thread.join()


class _Away:
    """A store that is away for the first reads."""

    def __init__(self, store, until):
        self._store = store
        self._until = until

    def read(self, name):
        if time.monotonic() < self._until:
            raise RetryableError("storage is away")
        return self._store.read(name)

    def uri_of(self, name):
        return self._store.uri_of(name)


def test_while_storage_is_away_no_time_counts(store):
    store.write(LEASE_NAME, b"{}")
    began = time.monotonic()
    thread, lost, _ = watch(_Away(store, began + 1.5), 1.0)
    assert lost.wait(20)
    thread.join()
    assert time.monotonic() - began >= 2.0


def test_a_run_without_a_status_has_done_nothing_yet(store):
    assert read_status(store) == Status()


@pytest.mark.faults
def test_workers_that_no_launcher_looks_after_commit_and_end(train):
    process = train(environment={"RELAY_LEASE_SECS": "15"}, epochs=100000)
    assert process.finish() == 70, process.log
    assert LEASE_MESSAGE in process.message
    assert process.completion is None
    assert process.arrays()
