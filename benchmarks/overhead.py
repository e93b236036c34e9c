"""What surviving costs: our loop with and without it, tf_keras' fit, and checkpoints.

- loop: blocks of steps of one compiled function (5 million weights on the digits), in turns bare
  and with all that a trainer does around them (heartbeat, ledger, history, metrics read by a
  supervisor's process, a checkpoint every 50 steps); ratio of medians. One process, one worker.
- fit: steps a second of two workers, ours as users run it against tf_keras' fit, same model, batch
  and number of threads, in turns, start-up left out. Ours runs with its defaults; fit with its own.
- stall: how long training stands still for a checkpoint of `--megabytes` of model and Adam state:
  ours (copy, then written and committed in the background) against tf.train.Checkpoint.write.

    python -m benchmarks.overhead [--blocks 10] [--megabytes 200]
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks import _tf_keras
from benchmarks.network import digits
from components.contracts.checkpoint import CheckpointInfo, numbered
from components.contracts.training_run import TrainingRun, to_json_bytes
from components.storage.open import open_store
from components.train_model.options import TrainOptions
from components.train_model.worker.assignment import Assignment
from components.train_model.worker.checkpointing import Checkpointer
from components.train_model.worker.fencing import Fence, Incarnation, take
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.training import Training
from tests.datasets import commit_binary_dataset
from tests.train_model.running import TrainingProcess

BLOCK_STEPS = 100
CHECKPOINT_STEPS = 50
# What a supervisor does while its trainer runs, in a process of its own.
SUPERVISING = """
import sys, time
from pathlib import Path
from components.train_model.worker.heartbeat import Heartbeat
from components.train_model.worker.metrics import WorkerMetrics
heartbeat, metrics = Heartbeat(Path(sys.argv[1])), WorkerMetrics(0, 48)
while True:
    time.sleep(0.05)
    metrics.update(heartbeat.read(), 0)
"""


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as name:
        folder = Path(name)
        commit_binary_dataset(str(folder / "data"))
        if _tf_keras.python():
            figures |= against_fit(folder)
        else:
            print(_tf_keras.ABSENT)
        figures |= loop_overhead(folder, options.blocks)
        figures |= checkpoint_stall(folder, options.megabytes)
    print("loop_with_to_without: wall time; fit_ours_to_tf_keras: steps a second; stall: seconds.")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def loop_overhead(folder: Path, blocks: int) -> dict[str, float]:
    """Wall time of blocks of steps with everything around them, to bare ones."""
    options = TrainOptions(
        dataset_uri=digits(folder / "digits"),
        model_module="benchmarks._wide_digits",
        hyperparameters={"learning_rate": 0.02},
        workers=1,
        batch_size=64,
        epochs=1_000_000,
        checkpoint_steps=CHECKPOINT_STEPS,
        validation_split="",
        steps_per_call=CHECKPOINT_STEPS,
    )
    training, path = _training(folder / "loop", options)
    batches = training.prepare()
    watcher = subprocess.Popen([sys.executable, "-c", SUPERVISING, str(path)])

    def bare() -> None:
        for _ in range(BLOCK_STEPS // CHECKPOINT_STEPS):
            training.loop.run(batches, CHECKPOINT_STEPS, stop=False, seconds_per_step=0.0)

    def with_all() -> None:
        for _ in range(BLOCK_STEPS // CHECKPOINT_STEPS):
            training.advance(batches)

    try:
        bare(), with_all()
        seconds = _alternate({"bare": bare, "with_all": with_all}, blocks)
    finally:
        watcher.kill()
    return {"loop_with_to_without": seconds["with_all"] / seconds["bare"]}


def against_fit(folder: Path) -> dict[str, float]:
    """Steps a second of two workers, in turns."""
    ours, theirs = [], []
    for turn in range(3):
        process = TrainingProcess(
            folder / f"ours-{turn}", str(folder / "data"), epochs=150, checkpoint_steps=50
        )
        try:
            process.finish(600)
            records = [r for r in process.completion.history if "loss" in r]
        finally:
            process.close()
        ours.append(_rate([(r["step"], r["time"]) for r in records]))
        fit = _tf_keras.Fit(
            folder / f"fit-{turn}", epochs=150, batch_size=48, rows=600, backup=True
        )
        try:
            fit.finish()
            theirs.append(_rate([(n, t) for n, (_, _, t) in enumerate(fit.batches())]))
        finally:
            fit.close()
    return {
        "steps_per_second_ours": statistics.median(ours),
        "steps_per_second_tf_keras": statistics.median(theirs),
        "fit_ours_to_tf_keras": statistics.median(ours) / statistics.median(theirs),
    }


def checkpoint_stall(folder: Path, megabytes: int) -> dict[str, float]:
    """Seconds that a training loop loses to one checkpoint."""
    width = int((megabytes * 1e6 / 4 / 3) ** 0.5)  # weights and Adam's two moments
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width, use_bias=False)])
    model.compile(keras.optimizers.Adam(), "mse")
    x = tf.random.stateless_normal([32, width], [1, 2])
    model.optimizer.build(model.trainable_variables)
    variables = {"model": model.variables, "optimizer": model.optimizer.variables}
    step = tf.function(lambda: model.train_step((x, x)))
    saver = _checkpointer(folder / "stall")
    reference = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    numbers = itertools.count(1)

    def ours() -> None:
        arrays = {
            name: variable.numpy()
            for group, listed in variables.items()
            for name, variable in numbered(group, listed)
        }
        saver.save(CheckpointInfo(step=next(numbers), fingerprint="f", incarnation=1), arrays)

    def synchronous() -> None:
        reference.write(str(folder / "reference" / "checkpoint"))

    def train(save: Callable[[], None] | None) -> Callable[[], None]:
        def block() -> None:
            for _ in range(20):
                step()
            if save is not None:
                save()
            for _ in range(20):
                step()

        return block

    ways = {"none": train(None), "ours": train(ours), "synchronous": train(synchronous)}
    for way in ways.values():
        way()
        saver.wait()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            seconds[name].append(_seconds(way))
            saver.wait()
    lost = {n: statistics.median(seconds[n]) - statistics.median(seconds["none"]) for n in ways}
    return {
        "stall_ours": lost["ours"],
        "stall_synchronous": lost["synchronous"],
        "stall_ours_to_synchronous": lost["ours"] / lost["synchronous"],
    }


def _checkpointer(folder: Path) -> Checkpointer:
    store = open_store(str(folder))
    take(store, "", Incarnation(number=1))
    return Checkpointer(
        store,
        fence=Fence(store, 1),
        tier=None,
        heartbeat=Heartbeat(folder / "heartbeat", create=True),
        writer="benchmark",
        committed=lambda info: None,
    )


def _training(folder: Path, options: TrainOptions) -> tuple[Training, Path]:
    folder.mkdir()
    store = open_store(str(folder / "run"))
    run = TrainingRun(
        model_module=options.model_module,
        hyperparameters=dict(options.hyperparameters),
        dataset_uri=options.dataset_uri,
        dataset_fingerprint="",
        fingerprint="f",
        created=time.time(),
    )
    store.create("run.json", to_json_bytes(run))
    take(store, "", Incarnation(number=1))
    assignment = Assignment(
        options=vars(options),
        run_uri=store.uri,
        fingerprint="f",
        worker=0,
        members=(),
        incarnation=1,
        restore_step=-1,
        holder="",
        token="",
        num_restarts=0,
        tier=str(folder / "tier"),
        cache=str(folder / "cache"),
        started=time.time(),
        last_progress=0.0,
        decided=time.time(),
    )
    heartbeat = Heartbeat(folder / "heartbeat", create=True)
    heartbeat.release()
    return Training(assignment, heartbeat), folder / "heartbeat"


def _alternate(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(_seconds(way))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _seconds(way: Callable[[], Any]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def _rate(points: list[tuple[float, float]]) -> float:
    """Steps a second over the second half of a run."""
    (first, begin), (last, end) = points[len(points) // 2], points[-1]
    return (last - first) / (end - begin)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
