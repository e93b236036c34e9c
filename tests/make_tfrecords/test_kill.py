"""kill -9 at any point: nothing is visible, and the rerun takes up the parts that were finished."""

import random
import time

import pytest

from components.contracts.dataset import open_dataset
from components.contracts.errors import InputError
from components.storage.open import open_store
from tests.make_tfrecords.killing import NUM_PARTS, NUM_ROWS, Conversion, write_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "rows.csv"
    write_source(path)
    return path


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory):
    """Files of a conversion that nothing has disturbed, and how long it took."""
    conversion = Conversion(source, tmp_path_factory.mktemp("undisturbed"))
    began = time.monotonic()
    conversion.start()
    conversion.finish()
    return conversion.contents, time.monotonic() - began


def assert_nothing_is_visible(conversion):
    with pytest.raises(InputError, match="no committed dataset"):
        open_dataset(open_store(str(conversion.output)))


def assert_completes(conversion, undisturbed):
    """The next attempt takes up the finished parts and gives the bytes of an undisturbed run."""
    finished, before = conversion.finished_parts, conversion.shard_times
    conversion.start()
    log = conversion.finish()
    if finished and len(finished) < NUM_PARTS:
        assert f"{len(finished)} of {NUM_PARTS} parts were converted before" in log
    after = conversion.shard_times
    for name, written in before.items():
        if int(name.split("-")[1]) in finished:
            assert after[name] == written, f"{name} was written again"
    contents = {n: b for n, b in conversion.contents.items() if ".relay-tmp-" not in n}
    assert contents == undisturbed[0]
    assert open_dataset(open_store(str(conversion.output))).num_rows == NUM_ROWS


POINTS = {
    "before-any-work": lambda conversion: conversion.output.exists(),
    "after-the-plan": lambda conversion: (conversion.output / "work/plan.json").exists(),
    "after-some-parts": lambda conversion: len(conversion.finished_parts) >= 3,
    "before-the-commit": lambda conversion: (conversion.output / "rejects.jsonl").exists(),
}


QUICK = ("after-some-parts", "before-the-commit")


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=() if p in QUICK else pytest.mark.faults) for p in POINTS],
)
def test_a_killed_conversion_is_completed_by_the_next(point, source, undisturbed, tmp_path):
    conversion = Conversion(source, tmp_path)
    conversion.start()
    if conversion.kill_when(lambda: POINTS[point](conversion)):
        assert not (conversion.output / "dataset.json").exists()
        assert_nothing_is_visible(conversion)
    assert_completes(conversion, undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(12))
def test_a_conversion_killed_again_and_again_is_completed(seed, source, undisturbed, tmp_path):
    chance = random.Random(seed)
    conversion = Conversion(source, tmp_path)
    for _ in range(chance.randint(1, 5)):
        conversion.start()
        end = time.monotonic() + chance.uniform(0, 1.1) * undisturbed[1]
        killed = conversion.kill_when(lambda end=end: time.monotonic() > end)
        if not (conversion.output / "dataset.json").exists():
            assert killed
            assert_nothing_is_visible(conversion)
    assert_completes(conversion, undisturbed)
