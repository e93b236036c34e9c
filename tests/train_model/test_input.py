"""Batches are a pure function of (seed, epoch, step), and every record comes once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contracts.dataset import open_dataset
from components.contracts.errors import InputError
from components.storage.errors import CorruptObjectError
from components.storage.open import open_store
from components.train_model.worker.permutation import permuted


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_a_permutation_has_every_record_once(size, seed, epoch):
    order = permuted(np.arange(size), size, seed, epoch)
    assert sorted(order.tolist()) == list(range(size))


def test_any_position_is_found_without_the_others():
    whole = permuted(np.arange(10_000), 10_000, 3, 7)
    assert permuted(np.array([9_876, 5]), 10_000, 3, 7).tolist() == [whole[9_876], whole[5]]


def test_epochs_and_seeds_have_different_orders_that_look_random():
    orders = [
        permuted(np.arange(10_000), 10_000, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    for first in range(3):
        for second in range(first):
            assert (orders[first] == orders[second]).mean() < 0.01
    for order in orders:
        assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05
        assert (np.diff(order) == 1).mean() < 0.01


@settings(deadline=None, max_examples=40)
@given(
    records=st.integers(24, 500),
    workers=st.sampled_from([1, 2, 3]),
    accumulation=st.sampled_from([1, 2]),
)
def test_an_epoch_over_all_workers_has_no_record_twice(records, workers, accumulation):
    from components.train_model.worker.input import BatchPlan

    plans = [
        BatchPlan(
            num_records=records,
            batch_size=12,
            workers=workers,
            worker=worker,
            accumulation=accumulation,
            seed=1,
        )
        for worker in range(workers)
    ]
    steps = plans[0].steps_per_epoch
    seen = [
        record
        for plan in plans
        for micro in range(steps * accumulation, 2 * steps * accumulation)
        for record in plan.records(micro).tolist()
    ]
    assert len(seen) == len(set(seen)) == steps * 12
    assert 0 <= min(seen) <= max(seen) < records


def test_too_few_records_for_one_batch():
    from components.train_model.worker.input import BatchPlan

    with pytest.raises(InputError, match="10 examples, fewer than batch_size 12"):
        BatchPlan(num_records=10, batch_size=12, workers=1, worker=0, accumulation=1, seed=0)


def test_records_are_read_by_number_and_damage_is_named(tmp_path):
    from components.train_model.worker.input import RecordReader
    from tests.datasets import commit_binary_dataset

    commit_binary_dataset(tmp_path / "dataset", num_train=20, num_eval=6, num_shards=3)
    store = open_store(str(tmp_path / "dataset"))
    dataset = open_dataset(store)
    reader = RecordReader(store, dataset, "train", tmp_path / "cache")
    assert reader.num_records == 20
    everything = reader.read(np.arange(20))
    assert len(set(everything)) == 20
    assert reader.read(np.array([19, 0, 7])).tolist() == [everything[n] for n in (19, 0, 7)]

    path = tmp_path / "dataset/train-00001-of-00003.tfrecord"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    reader = RecordReader(store, dataset, "train", tmp_path / "cache")
    with pytest.raises(CorruptObjectError, match="train-00001-of-00003.tfrecord.*byte 0"):
        reader.read(np.arange(20))


def test_fewer_shards_than_workers_are_no_trouble(tmp_path):
    """One shard of 10 records, two workers: each gets its half of every batch."""
    from components.train_model.worker.input import BatchPlan, RecordReader
    from tests.datasets import commit_binary_dataset

    dataset = commit_binary_dataset(tmp_path / "d", num_train=10, num_eval=4, num_shards=1)
    reader = RecordReader(open_store(dataset.uri), dataset, "train", tmp_path / "cache")
    seen = []
    for worker in range(2):
        plan = BatchPlan(
            num_records=reader.num_records,
            batch_size=10,
            workers=2,
            worker=worker,
            accumulation=1,
            seed=0,
        )
        seen += plan.records(0).tolist()
        assert len(reader.read(plan.records(0))) == 5
    assert sorted(seen) == list(range(10))
