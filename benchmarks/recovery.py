"""Seconds from a fault to its detection and to the next productive step, on two real workers.

Each fault strikes the same small run again and again; medians over the trials:

- death: SIGKILL of a trainer, with a warm spare and without one. Detected: its supervisor says so.
- frozen: SIGSTOP of a trainer. Detected: some process of the job says so, beyond heartbeat_secs.
- stuck: the Python main thread hangs in user code. Detected likewise, beyond the limit of a step.
- tf_keras' fit with BackupAndRestore, each worker under a shell loop that starts it again: from
  SIGKILL to the next batch, batches done again, and whether the weights are an undisturbed run's.

The next productive step is the first one that the new incarnation has completed. The spare's memory
is what only it maps (Pss of /proc/PID/smaps_rollup).

    python -m benchmarks.recovery [--trials 10] [--keras-trials 10]
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import _tf_keras
from components.train_model.worker.heartbeat import Beat, Heartbeat
from tests.datasets import commit_binary_dataset
from tests.train_model.running import TrainingProcess, environment

HEARTBEAT_SECS, STEP_LIMIT = 3.0, 5.0
KERAS_LIMIT_SECS = 120.0
OPTIONS = {
    "epochs": 100_000,
    "max_restarts": 1000,
    "heartbeat_secs": HEARTBEAT_SECS,
    "log_secs": 600,
    "checkpoint_steps": 20,
}


def main() -> None:
    """Measure, explain, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--keras-trials", type=int, default=10)
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="relay-benchmark-") as name:
        folder = Path(name)
        data = str(folder / "data")
        commit_binary_dataset(data)
        figures |= deaths(folder / "warm", data, options.trials, spare=True)
        figures |= deaths(folder / "cold", data, options.trials, spare=False)
        figures |= frozen(folder / "frozen", data, options.trials)
        figures |= stuck(folder / "stuck", data, options.trials)
        if options.keras_trials and _tf_keras.python():
            figures |= keras(folder / "keras", options.keras_trials)
        elif options.keras_trials:
            print(_tf_keras.ABSENT)
    print("Medians in seconds of this run; *_beyond_* has the given limit taken off.")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def deaths(folder: Path, data: str, trials: int, *, spare: bool) -> dict[str, float]:
    """SIGKILL of either worker's trainer in turn."""
    kind = "with_spare" if spare else "without_spare"
    process = TrainingProcess(folder, data, warm_spare=spare, **OPTIONS)
    try:
        found = []
        for trial in range(trials):
            wait_until_settled(process, spare=spare)
            if spare and trial == 0:
                memory = statistics.median(_pss_mb(process.trainers(w)[1]) for w in (0, 1))
            pid = process.trainers(trial % 2)[0]
            found.append(strike(process, lambda p=pid: os.kill(p, signal.SIGKILL), "killed by"))
    finally:
        process.close()
    figures = {
        f"death_detected_{kind}": statistics.median(d for d, _ in found),
        f"death_to_next_step_{kind}": statistics.median(r for _, r in found),
    }
    return figures | ({"spare_memory_mb": memory} if spare else {})


def frozen(folder: Path, data: str, trials: int) -> dict[str, float]:
    """SIGSTOP of either worker's trainer in turn."""
    process = TrainingProcess(folder, data, warm_spare=False, **OPTIONS)
    try:
        found = []
        for trial in range(trials):
            wait_until_settled(process, spare=False)
            pid = process.trainers(trial % 2)[0]
            signs = ("a peer was lost", "no progress for", "stood still")
            found.append(strike(process, lambda p=pid: os.kill(p, signal.SIGSTOP), *signs))
    finally:
        process.close()
    return {
        "frozen_detected_beyond_heartbeat": statistics.median(d for d, _ in found) - HEARTBEAT_SECS
    }


def stuck(folder: Path, data: str, trials: int) -> dict[str, float]:
    """The main thread sleeps inside the model's Python code."""
    hooks = folder / "hooks"
    hooks.mkdir(parents=True)
    process = TrainingProcess(
        folder,
        data,
        module="tests.faults.hooked_model",
        hyperparameters={"hooks": str(hooks)},
        limits={"step": STEP_LIMIT},
        warm_spare=False,
        **OPTIONS,
    )
    try:
        found = []
        for trial in range(trials):
            wait_until_settled(process, spare=False)
            path = hooks / f"step-stuck-{trial % 2}"
            found.append(strike(process, path.touch, "no progress for", "stood still"))
    finally:
        process.close()
    return {"stuck_detected_beyond_limit": statistics.median(d for d, _ in found) - STEP_LIMIT}


def strike(process: TrainingProcess, fault: Callable[[], None], *signs: str) -> tuple[float, float]:
    """Seconds from a fault to a log line with one of `signs`, and to a step made after it."""
    size = len(process.log)
    old = {pid for worker in (0, 1) for pid in process.trainers(worker)[:1]}
    began = time.monotonic()
    fault()
    process.wait_until(lambda: any(sign in process.log[size:] for sign in signs), pause=0.005)
    detected = time.monotonic() - began

    def steps_again() -> bool:
        pid = (process.trainers(0) or [0])[0]
        beat = _beat_of(pid)
        return pid not in old and beat is not None and beat.phase == "step" and beat.total > 0

    process.wait_until(steps_again, pause=0.005)
    return detected, time.monotonic() - began


def wait_until_settled(process: TrainingProcess, *, spare: bool) -> None:
    """Until both workers make steps, and have a spare with its imports done, if they keep one."""

    def settled() -> bool:
        for worker in (0, 1):
            beats = [_beat_of(pid) for pid in process.trainers(worker)]
            if not beats or beats[0] is None or beats[0].phase != "step":
                return False
            if spare and (len(beats) < 2 or beats[1] is None or beats[1].phase != "waiting"):
                return False
        return True

    process.wait_until(settled)
    time.sleep(1.0)


def keras(folder: Path, trials: int) -> dict[str, float]:
    """The same faults under a shell loop; a trial that does not come back is counted as such."""
    undisturbed = _fit(folder / "undisturbed")
    try:
        expected = undisturbed.finish()
    finally:
        undisturbed.close()
    recoveries, repeated, equal, lost = [], [], 0, 0
    for trial in range(trials):
        fit = _fit(folder / f"trial-{trial}")
        try:
            fit.wait_for_batches(300)
            before = len(fit.batches())
            began = time.monotonic()
            os.kill(fit.worker(trial % 2) or 0, signal.SIGKILL)
            fit.wait_for_batches(before + 5, KERAS_LIMIT_SECS)
            recoveries.append(time.monotonic() - began)
            weights = fit.finish(KERAS_LIMIT_SECS)
            done = [(epoch, batch) for epoch, batch, _ in fit.batches()]
            repeated.append(len(done) - len(set(done)))
            equal += all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True))
        except (TimeoutError, OSError):
            lost += 1
        finally:
            fit.close()
    figures = {
        "tf_keras_trials": trials,
        f"tf_keras_trials_not_back_after_{KERAS_LIMIT_SECS:.0f}_s": lost,
        "tf_keras_trials_with_equal_weights": equal,
    }
    if recoveries:
        figures["tf_keras_death_to_next_step"] = statistics.median(recoveries)
    if repeated:
        figures["tf_keras_steps_repeated"] = statistics.median(repeated)
    return figures


def _fit(folder: Path) -> _tf_keras.Fit:
    return _tf_keras.Fit(folder, epochs=80, batch_size=48, rows=600, backup=True)


def _beat_of(pid: int) -> Beat | None:
    path = environment(pid).get("RELAY_HEARTBEAT")
    try:
        return Heartbeat(Path(path)).read() if path else None
    except OSError:
        return None


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
