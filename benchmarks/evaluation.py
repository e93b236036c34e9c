"""CPU time an example of our evaluation against keras' `model.evaluate`, in one process.

Both read the same TFRecord shards through the same parsing and preprocessing and compute the same
compiled loss and metrics. Ours adds its own metrics with intervals, all slices, and the count.

    python -m benchmarks.evaluation [--examples 1000000] [--rounds 5]
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from components.contracts.dataset import Dataset
from components.contracts.examples import labels_for_loss, parse_batch
from components.contracts.split import SplitReader
from components.contracts.trained_model import TrainedModel
from components.evaluate_model.measure import Measured, make_tally
from components.evaluate_model.scoring import score
from components.evaluate_model.slices import slice_columns
from components.storage.open import open_store
from tests.models import delays as model_module
from tests.trained_runs import commit_rows, delays

BATCH = 4096
BLOCK = 20_000


def main() -> None:
    """Make the data, run both in turn, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as folder:
        dataset = _dataset(Path(folder), options.examples)
        trained = _trained(dataset)
        runs: dict[str, Callable[[], None]] = {
            "model.evaluate": lambda: _with_keras(dataset, trained),
            "ours, no slices": lambda: _with_ours(dataset, trained, ()),
            "ours, all slices": lambda: _with_ours(dataset, trained, ("*",)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                seconds[name].append(_cpu_seconds(run))
        _report(seconds, dataset.splits["eval"])


def _report(seconds: dict[str, list[float]], count: int) -> None:
    base = seconds["model.evaluate"]
    medians = {}
    for name, found in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(found, base, strict=True)]
        medians[name] = statistics.median(ratios)
        print(
            f"{name:18} {min(found) / count * 1e6:7.2f} us of CPU an example at best; of "
            f"model.evaluate in the same round {medians[name]:5.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count:,} examples; peak memory of the process {peak:,.0f} MiB")
    print(
        json.dumps(
            {
                "no_slices_to_model_evaluate": round(medians["ours, no slices"], 3),
                "all_slices_to_model_evaluate": round(medians["ours, all slices"], 3),
            }
        )
    )


def _cpu_seconds(run: Callable[[], None]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _dataset(folder: Path, examples: int) -> Dataset:
    """Blocks of distinct rows, each a shard's content, repeated by links to the same bytes."""
    rows, schema = delays(BLOCK)
    copies = max(examples // BLOCK, 1)
    return commit_rows(folder, schema, {"eval": rows}, num_shards=4, copies=copies)


def _trained(dataset: Dataset) -> TrainedModel:
    from components.contracts.preprocessing import DefaultPreprocessing

    keras.utils.set_random_seed(1)
    model = model_module.build_model(dataset.schema, {})
    preprocess = DefaultPreprocessing(dataset.schema)
    return TrainedModel(run=None, info=None, model=model, preprocess=preprocess)  # type: ignore[arg-type]


def _with_keras(dataset: Dataset, trained: TrainedModel) -> None:
    def prepare(records: Any) -> Any:
        columns = parse_batch(records, dataset.schema, dataset.layout)
        labels = columns.pop(dataset.schema.label.name)
        return trained.preprocess(columns), labels_for_loss(labels, dataset.schema)

    paths = [str(Path(dataset.uri, shard.name)) for shard in dataset.shards_of("eval")]
    batches = tf.data.TFRecordDataset(paths).batch(BATCH).map(prepare, num_parallel_calls=2)
    steps = -(-dataset.splits["eval"] // BATCH)
    trained.model.make_test_function(force=True)  # traced in every round, as ours is
    trained.model.evaluate(batches.prefetch(2), steps=steps, verbose=0)


def _with_ours(dataset: Dataset, trained: TrainedModel, slices: tuple[str, ...]) -> None:
    store = open_store(dataset.uri)
    columns = slice_columns(dataset.schema, slices, 20)
    with tempfile.TemporaryDirectory() as cache:
        scoring = score(
            SplitReader(store, dataset, dataset.shards_of("eval"), Path(cache)),
            dataset,
            trained,
            tally=make_tally(dataset.schema, columns),
            slices=columns,
            batch_size=BATCH,
        )
    measured = Measured(dataset.schema, scoring.tally, 0.95)
    measured.metrics()
    measured.slices(columns)
    measured.curves()


if __name__ == "__main__":
    main()
