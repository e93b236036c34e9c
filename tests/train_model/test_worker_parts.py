"""The small parts of a worker: cluster, heartbeat, limits, ledger, history, local tier, options."""

import json

import numpy as np
import pytest

from components.contracts.checkpoint import CheckpointInfo, load_newest, write_state
from components.contracts.errors import InputError
from components.storage.errors import CorruptObjectError
from components.storage.open import open_store
from components.train_model.options import TrainOptions, weight_options
from components.train_model.worker.cluster import read_cluster
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.ledger import BUCKETS, Ledger
from components.train_model.worker.limits import PhaseLimits
from components.train_model.worker.local_tier import LocalTier
from components.train_model.worker.memory import oom_kills
from components.train_model.worker.progress import DataWait, EarlyStopping, History
from tests.train_model.test_agreement import checkpoint


def options(**changes):
    return TrainOptions(**{"dataset_uri": "d", "model_module": "m", **changes})


def test_a_whole_tf_config():
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    cluster = read_cluster(2, 2223, {"TF_CONFIG": json.dumps(config)})
    assert (cluster.index, cluster.trainers) == (1, ("a:1", "b:1"))
    assert cluster.supervisors == ("a:2223", "b:2223")


def test_a_sparse_tf_config_is_completed_from_the_jobs_name():
    config = {
        "cluster": {"worker": {"1": "job-worker-1.ns.svc:2222"}, "ps": None},
        "task": {"type": "worker", "index": 1},
    }
    environment = {
        "TF_CONFIG": json.dumps(config),
        "RELAY_JOB_NAME": "job",
        "RELAY_NAMESPACE": "ns",
    }
    cluster = read_cluster(3, 2223, environment)
    assert cluster.trainers == tuple(f"job-worker-{index}.ns.svc:2222" for index in range(3))
    assert cluster.supervisors[2] == "job-worker-2.ns.svc:2223"
    with pytest.raises(InputError, match="RELAY_JOB_NAME"):
        read_cluster(3, 2223, {"TF_CONFIG": json.dumps(config)})


def test_a_job_of_one_has_no_tf_config():
    assert read_cluster(1, 2223, {}).size == 1
    with pytest.raises(InputError, match="2 workers"):
        read_cluster(2, 2223, {})


@pytest.mark.parametrize("text", ["{", "{}", '{"cluster": {}, "task": {"index": 0}}'])
def test_a_tf_config_that_is_none(text):
    with pytest.raises(InputError, match="TF_CONFIG"):
        read_cluster(2, 2223, {"TF_CONFIG": text})


def test_a_heartbeat_is_seen_by_the_other_side(tmp_path):
    mine = Heartbeat(tmp_path / "beat", create=True)
    theirs = Heartbeat(tmp_path / "beat")
    assert mine.read().phase == "imports"
    assert mine.read().committed == -1
    theirs.beat("step", 7)
    theirs.committed(5)
    goodput = dict(zip(BUCKETS, range(7), strict=True))
    figures = {"data_wait": 1.0, "checkpoint_wait": 2.0, "total": 10.0, "target": 100}
    theirs.record(loss=0.5, **figures, goodput=goodput)
    beat = mine.read()
    assert (beat.phase, beat.step, beat.committed, beat.loss) == ("step", 7, 5, 0.5)
    assert (beat.data_wait, beat.checkpoint_wait, beat.total, beat.target) == (1.0, 2.0, 10.0, 100)
    assert beat.goodput == goodput
    assert 0 <= beat.age < 60
    assert not theirs.stop_requested
    mine.request_stop()
    assert theirs.stop_requested


def test_the_limit_of_a_step_is_learned_above_its_floor():
    limits = PhaseLimits(options())
    assert limits.limit_of("step") == 60
    for _ in range(10):
        limits.observe_call(10.0)
    assert limits.limit_of("step") == 200
    assert limits.limit_of("waiting") == limits.limit_of("imports") == 180
    given = PhaseLimits(options(limits={"step": 5}))
    given.observe_call(10.0)
    assert given.limit_of("step") == 5


def test_every_second_is_in_one_bucket_also_across_a_failure():
    ledger = Ledger(100.0)
    ledger.charge("start_up", until=110.0)
    ledger.charge("productive", until=150.0)
    state = json.loads(json.dumps(ledger.state()))
    ledger.charge("productive", until=170.0)  # lost with the process
    resumed = Ledger(100.0)
    resumed.resume(state, last_progress=168.0, restarted=175.0)
    resumed.charge("start_up", until=180.0)
    seconds = resumed.seconds()
    assert seconds["productive"] == 40
    assert seconds["lost"] == 18
    assert seconds["stalled"] == 7
    assert seconds["start_up"] == 15
    assert sum(seconds.values()) == 80


def test_the_history_has_every_step_once_across_a_restart():
    history = History(target=1000)
    history.add(3, np.array([1.0, 2.0, 3.0]), float)
    state = json.loads(json.dumps(history.state()))
    history.add(9, np.ones(6), float)  # lost with the process
    resumed = History(target=1000)
    resumed.load(state)
    resumed.add(5, np.array([4.0, 5.0]), float)
    records = resumed.records()
    assert sum(record["steps"] for record in records) == 5
    assert records[-1]["step"] == 5
    total = sum(record["loss"] * record["steps"] for record in records)
    assert total == 15.0


@pytest.mark.parametrize(
    ("metric", "values", "stops_after", "best"),
    [
        ("val_auc", [0.5, 0.7, 0.6, 0.65, 0.9], 4, 2),
        ("val_loss", [0.5, 0.3, 0.4, 0.35, 0.1], 4, 2),
        ("-val_cost", [3.0, 2.0, 2.5, 2.1], 4, 2),
        ("val_auc", [0.5, 0.6, 0.7, 0.8], None, 4),
    ],
)
def test_early_stopping_survives_a_restart_after_each_validation(metric, values, stops_after, best):
    stopping = EarlyStopping(metric, 2)
    stopped = None
    for step, value in enumerate(values, 1):
        stopping.observe(step, {metric.removeprefix("-"): value})
        state = json.loads(json.dumps(stopping.state()))
        stopping = EarlyStopping(metric, 2)
        stopping.load(state)
        if stopping.stopped:
            stopped = step
            break
    assert stopped == stops_after
    assert stopping.best_step == best


def test_an_early_stopping_metric_that_is_not_computed():
    with pytest.raises(InputError, match="val_acu.*val_auc"):
        EarlyStopping("val_acu", 1).observe(1, {"val_auc": 1.0})


def test_the_local_tier_keeps_the_newest_of_its_own_run(tmp_path):
    tier = LocalTier(tmp_path, "mine")
    for step in (1, 2, 3):
        tier.save(CheckpointInfo(step=step, fingerprint="mine", incarnation=1), {"a": np.arange(3)})
    assert tier.steps() == [2, 3]
    info, arrays = tier.load(3)
    assert info.step == 3
    assert arrays["a"].tolist() == [0, 1, 2]
    other = LocalTier(tmp_path, "other")
    assert other.steps() == []
    path = tier.path_of(3)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptObjectError, match="CRC32C"):
        tier.load(3)
    tier.discard_after(2)
    assert tier.steps() == [2]
    other.clear_foreign()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "deleted", "uncommitted", "not-a-manifest"])
def test_restore_falls_back_to_the_checkpoint_before(tmp_path, damage, caplog):
    store = open_store(str(tmp_path / "run"))
    checkpoint(store, 10, tmp_path)
    checkpoint(store, 20, tmp_path)
    state = tmp_path / "run/checkpoints/step-00000020/state-0001.safetensors"
    manifest = state.with_name("manifest.json")
    if damage == "truncated":
        state.write_bytes(state.read_bytes()[:5])
    elif damage == "deleted":
        state.unlink()
    elif damage == "uncommitted":
        manifest.unlink()
    else:
        manifest.write_bytes(b'{"step": 2')
    info, arrays = load_newest(store)
    assert info.step == 10
    assert arrays["model/0000"].tolist() == [10] * 10
    if damage != "uncommitted":
        assert "step-00000020" in caplog.text


def test_scalars_keep_their_shape_in_a_checkpoint(tmp_path):
    from components.contracts.checkpoint import read_state

    arrays = {"a": np.array(3), "b": np.zeros((2, 0)), "c": np.arange(6).reshape(2, 3).T}
    write_state(tmp_path / "state", arrays)
    found = read_state(tmp_path / "state")
    assert {name: array.shape for name, array in found.items()} == {
        "a": (),
        "b": (2, 0),
        "c": (3, 2),
    }
    assert np.array_equal(found["c"], arrays["c"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 33}, "multiple of 2"),
        ({"batch_size": 32, "workers": 3, "gradient_accumulation": 4}, "multiple of 12"),
        ({"workers": 0}, "workers is 0"),
        ({"limits": {"stpe": 3}}, "no phase 'stpe'"),
        ({"limits": {"step": 0}}, r"limits\[step\]"),
        ({"clip_norm": float("nan")}, "clip_norm is nan"),
        ({"nccl": {"LD_PRELOAD": "x"}}, "'LD_PRELOAD' is no variable of NCCL"),
    ],
)
def test_options_that_cannot_work(changes, text):
    with pytest.raises(InputError, match=text):
        options(**changes)


def test_waiting_for_data_is_told_with_its_share_of_the_last_stretch():
    wait = DataWait(share=0.05, over_secs=60)
    assert wait.observe(30.0, 59.0) == ""
    assert "waited for data 50% of the last 60 s" in wait.observe(30.0, 60.0)
    assert wait.observe(33.0, 121.0) == ""  # 3 of 61 seconds
    assert "10% of the last 60 s" in wait.observe(39.0, 181.0)


def test_only_what_changes_the_weights_is_in_the_fingerprint():
    same = options(checkpoint_steps=5, warm_spare=False, limits={"step": 9}, steps_per_call=7)
    assert weight_options(same) == weight_options(options())
    for changes in ({"seed": 1}, {"workers": 4}, {"clip_norm": 1.0}, {"epochs": 2}):
        assert weight_options(options(**changes)) != weight_options(options())


def test_the_kernels_count_of_memory_kills_is_a_number():
    assert oom_kills() >= 0
