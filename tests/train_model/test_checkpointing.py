"""Checkpoints are written beside training: in order, by the newest, of sound weights."""

import threading

import numpy as np
import pytest

from components.contracts.checkpoint import CheckpointInfo, committed_steps
from components.contracts.errors import FencedError, PermanentError
from components.storage.open import open_store
from components.train_model.worker.checkpointing import Checkpointer
from components.train_model.worker.fencing import Fence, Incarnation, read_incarnation, take
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.local_tier import LocalTier


@pytest.fixture
def store(tmp_path):
    opened = open_store(str(tmp_path / "run"))
    take(opened, "", Incarnation(number=1))
    return opened


@pytest.fixture
def heartbeat(tmp_path):
    return Heartbeat(tmp_path / "heartbeat", create=True)


def checkpointer(store, heartbeat, *, committed=lambda info: None, tier=None):
    return Checkpointer(
        store,
        fence=Fence(store, 1),
        tier=tier,
        heartbeat=heartbeat,
        writer="test",
        committed=committed,
        finite=["model/0000"],
    )


def info(step):
    return CheckpointInfo(step=step, fingerprint="f", incarnation=1)


def arrays(value=1.0):
    return {"model/0000": np.full(3, value), "model/0001": np.array([np.inf])}


def test_weights_that_are_not_finite_are_never_committed(store, heartbeat, tmp_path):
    tier = LocalTier(tmp_path / "tier", "f")
    saver = checkpointer(store, heartbeat, tier=tier)
    saver.save(info(10), arrays())
    saver.wait()
    saver.save(info(20), arrays(np.nan))
    with pytest.raises(PermanentError, match=r"model/0000.*not finite after step 20"):
        saver.wait()
    assert committed_steps(store) == tier.steps() == [10]
    assert heartbeat.read().committed == 10


def test_a_newer_checkpoint_takes_the_place_of_one_that_waits(store, heartbeat, caplog):
    begun, go_on = threading.Event(), threading.Event()

    def slow(committed):
        begun.set()
        assert go_on.wait(60)

    saver = checkpointer(store, heartbeat, committed=slow)
    saver.save(info(10), arrays())
    assert begun.wait(60)
    for step in (20, 30):
        saver.save(info(step), arrays())  # returns at once, though 10 is not done
    assert "step 20 is not committed" in caplog.text
    go_on.set()
    saver.wait()
    assert committed_steps(store) == [10, 30]


def test_a_fenced_chief_learns_of_it_from_its_next_checkpoint(store, heartbeat):
    saver = checkpointer(store, heartbeat)
    _, generation = read_incarnation(store)
    take(store, generation, Incarnation(number=2))
    saver.save(info(10), arrays())
    with pytest.raises(FencedError, match="replaced by incarnation 2"):
        saver.wait()
    assert committed_steps(store) == []
